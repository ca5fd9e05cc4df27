"""In a trial loggers log nowhere and hubs receive nothing, whatever the script asks them for.

The launcher sets the variables of these services (`isolation/quiet_services.py`). A script that
says `wandb.init(mode="online")` overrules them, so their doors are changed in the process, too.
Where a package has a mode in which it sends nothing, its own object is what the script gets.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from contextlib import suppress
from types import ModuleType
from typing import Any

from gpurun.records.frames import transparent
from gpurun.runtime.core.patching import replace
from gpurun.runtime.core.post_import import when_imported

Make = Callable[[Callable[..., Any]], Callable[..., Any]]
"""Makes the stand-in of a function."""

LOCAL_MLFLOW = os.environ.get("MLFLOW_TRACKING_URI")
"""The folder that the launcher gave it, which disappears."""


class NothingUploaded(str):
    """The result of an upload in a trial: a string with the fields of the hub's own results.

    `repo_id` is the repository that was asked for; every other field is empty.
    """

    repo_id = ""

    def __getattr__(self, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return ""


def _forced(**values: object) -> Make:
    """Call the original with these arguments in place of the script's."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        known = inspect.signature(original)
        named = {name: value for name, value in values.items() if name in known.parameters}
        kinds = {parameter.kind for parameter in known.parameters.values()}
        takes_more = inspect.Parameter.VAR_KEYWORD in kinds
        more = {n: v for n, v in values.items() if takes_more and n not in named}

        def call(*args: object, **kwargs: object) -> Any:
            with suppress(TypeError):  # the script's own error, which the original will raise
                given = known.bind_partial(*args, **kwargs)
                given.arguments.update(named)
                args, kwargs = given.args, {**given.kwargs, **more}
            return original(*args, **kwargs)

        return transparent(call)

    return make


def _always(value: object) -> Make:
    """Call the original with this one argument, whatever the script gives it."""
    return lambda original: transparent(lambda *args, **kwargs: original(value))


def _returning(result: object) -> Make:
    return lambda original: transparent(lambda *args, **kwargs: result)


def _upload(original: Callable[..., Any]) -> Callable[..., Any]:
    @transparent
    def upload(*args: object, **kwargs: object) -> NothingUploaded:
        result = NothingUploaded("")
        named = [a for a in args if isinstance(a, str)]
        result.repo_id = str(kwargs.get("repo_id") or (named[0] if named else ""))
        return result

    return upload


HUB_UPLOADS = (
    "create_repo", "create_commit", "upload_file", "upload_folder", "upload_large_folder",
    "create_branch", "create_tag", "delete_file", "delete_repo", "super_squash_history",
)  # fmt: skip
NEPTUNE = (
    "init_run", "init_project", "init_model", "init_model_version",
    "Run", "Project", "Model", "ModelVersion",
)  # fmt: skip
COMET = (
    "Experiment", "ExistingExperiment", "OfflineExperiment", "ExistingOfflineExperiment",
    "ExperimentConfig",
)  # fmt: skip
STAND_INS: tuple[tuple[str, tuple[str, ...], Make], ...] = (
    ("wandb.sdk.wandb_init", ("init",), _forced(mode="disabled")),
    ("wandb", ("init",), _forced(mode="disabled")),
    ("wandb", ("login",), _returning(True)),
    ("wandb", ("sweep",), _returning("")),
    ("mlflow.tracking._tracking_service.utils", ("set_tracking_uri",), _always(LOCAL_MLFLOW)),
    ("mlflow", ("set_tracking_uri", "set_registry_uri"), _always(LOCAL_MLFLOW)),
    ("mlflow", ("MlflowClient",), _forced(tracking_uri=LOCAL_MLFLOW, registry_uri=LOCAL_MLFLOW)),
    ("mlflow", ("login",), _returning(None)),
    ("comet_ml", COMET, _forced(disabled=True)),
    ("comet_ml", ("start",), _forced(online=False)),
    ("comet_ml", ("login", "init"), _returning(None)),
    ("neptune", NEPTUNE, _forced(mode="debug")),
    ("neptune.new", ("init", *NEPTUNE), _forced(mode="debug")),
    ("neptune_scale", ("Run",), _forced(mode="disabled")),
    ("clearml", ("Task.set_offline",), _always(True)),
    ("swanlab", ("init",), _forced(mode="disabled")),
    ("swanlab", ("login",), _returning(None)),
    ("huggingface_hub.hf_api", HUB_UPLOADS, _upload),
    ("huggingface_hub.hf_api", tuple(f"HfApi.{name}" for name in HUB_UPLOADS), _upload),
)
"""Module, its functions and classes (of these the arguments that make them), and the stand-in."""
CALLED_AT_ONCE = {"mlflow": "set_tracking_uri", "clearml": "Task.set_offline"}
"""What the script may have left out, having set a variable instead."""


def quieten() -> None:
    """Put the stand-ins in place, each once its module is imported."""
    for module in dict.fromkeys(module for module, _, _ in STAND_INS):
        when_imported(module, _imported)


def _imported(module: ModuleType) -> None:
    for name, places, make in STAND_INS:
        for place in places if name == module.__name__ else ():
            _replace(module, place, make)
    at_once = _found(module, CALLED_AT_ONCE.get(module.__name__, ""))
    if at_once is not None:
        at_once(None)


def _replace(module: ModuleType, place: str, make: Make) -> None:
    target = _found(module, place)
    if isinstance(target, type):
        replace(target, "__init__", make)
    elif target is not None:
        owner, _, name = place.rpartition(".")
        replace(_found(module, owner) if owner else module, name, make)


def _found(module: ModuleType, place: str) -> Any:
    """What stands at a place such as "Task.init"; None where this version has nothing there."""
    found: Any = module if place else None
    for name in filter(None, place.split(".")):
        found = getattr(found, name, None)
    return found
