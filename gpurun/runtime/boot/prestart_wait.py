"""A trial's process that is started before its settings are known.

It imports the modules that every trial imports, and waits in python's start-up, before any line of
the script. The launch is as fresh as any other, and its start is over when its turn comes.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

from gpurun.records.codec import from_json
from gpurun.records.spec import RUN_SPEC, RunSpec

POLL_SECONDS = 0.005
WARM_POOL = "TORCH_WARM_POOL"
"""Read where the inductor is imported; its processes then start with the first compilation."""


def await_run_spec(spec: RunSpec) -> RunSpec:
    """Import what `spec` names and wait; the spec that the launcher then gives.

    Later processes of the same launch find it there and neither import nor wait.
    """
    control = Path(spec.run_dir) / "control"
    run_spec = control / RUN_SPEC
    if not run_spec.exists():
        _import(spec.prestart_modules)
    while not run_spec.exists():
        time.sleep(POLL_SECONDS)
    return from_json(RunSpec, json.loads(run_spec.read_text()))


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
