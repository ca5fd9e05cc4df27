"""Environment that keeps logging services and uploads quiet while trials run."""

from __future__ import annotations

from collections.abc import Mapping

MLFLOW = "file:///tmp/gpurun-trial-mlruns"
"""Where MLflow records go in a trial; a sandbox without overlay moves them to its scratch."""

QUIET = {
    "WANDB_MODE": "disabled",
    "WANDB_DISABLED": "true",
    "WANDB_SILENT": "true",
    "COMET_MODE": "disabled",
    "COMET_AUTO_LOG_DISABLE": "1",
    "COMET_START_ONLINE": "0",
    "NEPTUNE_MODE": "debug",
    "NEPTUNE_LOGGER_MODE": "disabled",
    "CLEARML_OFFLINE_MODE": "1",
    "TRAINS_OFFLINE_MODE": "1",
    "SWANLAB_MODE": "disabled",
    "AIM_TELEMETRY_ENABLED": "0",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "CODECARBON_SAVE_TO_API": "false",
    "CODECARBON_SAVE_TO_FILE": "false",
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "MLFLOW_TRACKING_URI": MLFLOW,
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "DAGSHUB_CLIENT_TOKEN": "",
}
"""Variable to value. Where a service has no switch, an address that leads nowhere lasting."""

CREDENTIALS = (
    "AIM_TRACKING_SERVER",
    "CLEARML_API_ACCESS_KEY",
    "CLEARML_API_SECRET_KEY",
    "COMET_API_KEY",
    "MLFLOW_TRACKING_PASSWORD",
    "MLFLOW_TRACKING_TOKEN",
    "MLFLOW_TRACKING_USERNAME",
    "MLFLOW_RUN_ID",
    "MLFLOW_EXPERIMENT_ID",
    "NEPTUNE_API_TOKEN",
    "SWANLAB_API_KEY",
    "TRACKIO_SERVER_URL",
    "TRACKIO_SPACE_ID",
    "WANDB_RUN_ID",
    "WANDB_RESUME",
)
"""Credentials and run ids: without them a service cannot upload. A trial does not get them."""


def quiet_services(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of a trial: logging services off, nothing uploaded; all else as in `env`.

    Tokens for downloads (HF_TOKEN) stay, or gated models could not be read.
    """
    kept = {name: value for name, value in env.items() if name not in CREDENTIALS}
    return {**kept, **QUIET}
