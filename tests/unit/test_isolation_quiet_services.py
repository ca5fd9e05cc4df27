"""The environment of a trial starts no logging service's run."""

from gpurun.isolation.quiet_services import quiet_services


def test_services_are_off_whatever_the_user_has_set() -> None:
    env = quiet_services({"WANDB_MODE": "online", "MLFLOW_TRACKING_URI": "https://team"})
    assert env["WANDB_MODE"] == "disabled"
    assert env["COMET_MODE"] == "disabled"
    assert env["CLEARML_OFFLINE_MODE"] == "1"
    assert env["MLFLOW_TRACKING_URI"].startswith("file:")


def test_keys_that_only_reporting_needs_are_not_handed_on_and_the_rest_stays() -> None:
    env = quiet_services({"NEPTUNE_API_TOKEN": "t", "HF_TOKEN": "h", "PATH": "/bin"})
    assert "NEPTUNE_API_TOKEN" not in env
    assert (env["HF_TOKEN"], env["PATH"]) == ("h", "/bin")
