"""Run a script under settings and read back what it printed and what the record says of knobs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.run_events import events

NO_CONTEXT = b"no current CUDA context"
"""Torch warns so where a thread's first work on a GPU is a matrix product; it then makes one."""


@dataclass(frozen=True)
class KnobRun:
    """`printed`: the JSON document that the script printed; `knobs`: (knob, outcome, detail)."""

    printed: Any
    knobs: list[tuple[str, str, str]]

    def outcomes(self, knob: str) -> list[str]:
        """The outcomes of one knob, in the order of the record."""
        return [outcome for name, outcome, _ in self.knobs if name == knob]


def run_under(
    gpurun: Callable[..., Any],
    folder: Path,
    script: str,
    settings: dict[str, Any],
    training: tuple[str, ...] = (),
    arguments: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
) -> KnobRun:
    """Run `script` as `train.py` of `folder` under `settings`; no hook may have raised."""
    (folder / "train.py").write_text(script)
    document = {
        "settings": settings, "training_loaders": training, "speedup": None,
        "fingerprint": {}, "command": [], "schema": "gpurun/settings@1",
    }  # fmt: skip
    (folder / "settings.json").write_text(json.dumps(document))
    consent = ("--allow", "pipeline,numerics,training")
    done = gpurun("--settings", "settings.json", *consent, "train.py", *arguments, env=env)
    assert done.returncode == 0, done.stderr.decode()
    told = [line for line in done.stderr.splitlines() if NO_CONTEXT not in line]
    assert b"Warning" not in b"".join(told), done.stderr.decode()
    runs = sorted((folder / ".gpurun" / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
    assert events(runs[-1], "hook") == []
    knobs = [(e["knob"], e["outcome"], e["detail"]) for e in events(runs[-1], "knob")]
    return KnobRun(json.loads(done.stdout), knobs)


def bare(folder: Path, script: str) -> Any:
    """The JSON document that a script prints under plain python."""
    (folder / "bare.py").write_text(script)
    command = [sys.executable, "bare.py"]
    return json.loads(subprocess.run(command, cwd=folder, capture_output=True, check=True).stdout)
