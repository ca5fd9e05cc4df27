"""First stage in the user's process: read the spec and wait for torch. Imports next to nothing."""

from __future__ import annotations

import json
import sys
from types import ModuleType

from gpurun.records.codec import from_json
from gpurun.records.spec import RunSpec
from gpurun.runtime.imports import when_imported
from gpurun.runtime.recorder import RECORDER

HELPERS = ("compile_worker", "resource_tracker", "multiprocessing.forkserver")
"""Python processes that torch and multiprocessing start for themselves: we stay inert there."""


def activate(spec_path: str) -> None:
    """Arm the runtime of this process from the spec file at `spec_path`."""
    command = getattr(sys, "orig_argv", [])
    if any(helper in word for word in command for helper in HELPERS):
        return
    with open(spec_path) as file:
        spec = from_json(RunSpec, json.load(file))
    RECORDER.open(spec.run_dir, eager="--multiprocessing-fork" not in command)
    if spec.trial is not None:
        from gpurun.runtime import trial

        trial.prepare(spec.trial)

    def torch_is_here(torch: ModuleType) -> None:
        try:
            from gpurun.runtime import session

            session.start(spec, torch)
        except Exception as error:
            RECORDER.hook_failed("session", error)

    when_imported("torch", torch_is_here)
