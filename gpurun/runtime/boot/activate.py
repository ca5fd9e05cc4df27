"""The first stage in the user's process: read the spec and wait for torch; import little.

A trial's process may be started before its settings are known. It imports the modules that every
trial imports, and waits in python's start-up, before any line of the script. The launch is as fresh
as any other, and its start is over when its turn comes.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any

from gpurun.records.codec import from_json
from gpurun.records.spec import RUN_SPEC, RunSpec
from gpurun.runtime.boot import rank_process
from gpurun.runtime.core.patching import replace
from gpurun.runtime.core.post_import import when_imported
from gpurun.runtime.core.recorder import RECORDER

HELPERS = ("compile_worker", "resource_tracker", "gpurun.launch.elastic_agent")
"""Python processes that torch, multiprocessing and we start: the runtime stays inert there."""

PACKAGE = os.path.realpath(f"{__file__}/../../..") + os.sep

HEARTBEAT_SECONDS = str(24 * 3600)
"""A side of a live pair may be silent for this long: it is frozen in the other's turns."""

FORK_SERVER = "multiprocessing.forkserver"
"""Inert too, but for the guard of the loader workers that it forks."""


def activate(spec_path: str) -> None:
    """Arm the runtime of this process from the spec file at `spec_path`."""
    _give_way()
    command = getattr(sys, "orig_argv", [])
    if any(helper in word for word in command for helper in HELPERS):
        return
    if any(FORK_SERVER in word for word in command):
        when_imported("torch.utils.data._utils.worker", _guard_workers)
        _serve_added_workers(spec_path)
        return
    is_rank = rank_process.is_rank()
    if is_rank:
        rank_process.end_with_agent()
        rank_process.settle_gloo_before_exit()
    spec = _read_spec(spec_path)
    start = dict(os.environ)
    RECORDER.open(spec.run_dir, eager="--multiprocessing-fork" not in command)
    rank_process.survive_full_logs(spec)
    rank_process.write_at_exit(spec)
    _prepare(spec, is_rank)
    when_imported("torch", lambda _: _install_hooks(spec, start))


def _give_way() -> None:
    """Let the script import a module of its own that is called `gpurun`, and do not come between
    it and `-m coverage run`.
    """
    main = sys.argv[0] if getattr(sys, "argv", None) else ""
    folder = "" if main in ("", "-c", "-m") else os.path.dirname(os.path.realpath(main))
    own = PathFinder.find_spec("gpurun", [folder, *sys.path])
    if own is not None and own.loader is not None and own.origin != f"{PACKAGE}__init__.py":
        from gpurun.runtime.boot import scripts_own_gpurun

        scripts_own_gpurun.leave_name(own)
    if "coverage" not in sys.modules and any("coverage" in word for word in sys.orig_argv):
        when_imported("coverage.inorout", _keep_out)


def _keep_out(inorout: ModuleType) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, file, frame: (
            "is part of gpurun" if file.startswith(PACKAGE) else original(self, file, frame)
        )

    replace(inorout.InOrOut, "check_include_omit_etc", make)


def _read_spec(path: str) -> RunSpec:
    """The spec of this launch; a process that was started before its turn waits for it."""
    with open(path) as file:
        spec = from_json(RunSpec, json.load(file))
    if spec.prestart_modules:
        spec = await_run_spec(spec)
    if spec.turns_after_steps is not None:
        # torch's watchdog takes a rank that is frozen for long for one that hangs
        os.environ.setdefault("TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", HEARTBEAT_SECONDS)
    return spec


def _prepare(spec: RunSpec, is_rank: bool) -> None:
    """Do what must be done before torch is imported; most launches ask for none of it."""
    if spec.trees is not None:
        from gpurun.runtime.observe import loaded_modules

        loaded_modules.watch(spec.trees)
        if "--multiprocessing-fork" not in getattr(sys, "orig_argv", ()):
            from gpurun.runtime.trial import opened_files

            opened_files.watch(spec.trees.own)
    if spec.parallel is not None:
        from gpurun.runtime.ddp import install_ddp

        install_ddp.prepare(
            spec.parallel, spec.run_dir, trial=spec.trial is not None, in_child=not is_rank
        )
    if spec.trial is not None:
        from gpurun.runtime.trial import prepare_trial

        prepare_trial.prepare(spec.trial)
    if spec.profile is not None:
        from gpurun.runtime.profile import profiler_recordings

        profiler_recordings.keep_quiet()


def _install_hooks(spec: RunSpec, start: dict[str, str]) -> None:
    """Torch is there; `start` is the environment as the process found it."""
    try:
        from gpurun.runtime.boot import install_hooks
        from gpurun.runtime.observe.loaded_modules import changed_variables

        install_hooks.install(spec, changed_variables(start))
    except Exception as error:
        RECORDER.hook_failed("session", error)


def _serve_added_workers(spec_path: str) -> None:
    if any(setting.knob == "loader_workers" for setting in _read_spec(spec_path).settings):
        from gpurun.knobs.loading import added_workers

        added_workers.serve_apart()


def _guard_workers(worker: ModuleType) -> None:
    from gpurun.runtime.observe import orphan_workers

    orphan_workers.guard(worker)


POLL_SECONDS = 0.005
WARM_POOL = "TORCH_WARM_POOL"
"""Read where the inductor is imported; its processes then start with the first compilation."""


def await_run_spec(spec: RunSpec) -> RunSpec:
    """Import what `spec` names and wait; the spec that the launcher then gives.

    Later processes of the same launch find it there and neither import nor wait.
    """
    run_spec = os.path.join(spec.run_dir, "control", RUN_SPEC)
    if not os.path.exists(run_spec):
        _import(spec.prestart_modules)
    while not os.path.exists(run_spec):
        time.sleep(POLL_SECONDS)
    with open(run_spec) as file:
        return from_json(RunSpec, json.load(file))


def _import(modules: Sequence[str]) -> None:
    """Import them; torch's inductor without the process that it starts for each core."""
    before = os.environ.get(WARM_POOL)
    os.environ[WARM_POOL] = "0"
    try:
        for name in modules:
            importlib.import_module(name)
    except Exception:
        pass  # the script's own import will raise it
    finally:
        if before is None:
            del os.environ[WARM_POOL]
        else:
            os.environ[WARM_POOL] = before
