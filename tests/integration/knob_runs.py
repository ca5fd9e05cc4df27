"""Run a script under settings and read back what it printed and what the record says of knobs."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpurun.arguments.gpurun_toml import load_config
from gpurun.knobs import all_knobs
from gpurun.records.spec import RunSpec, Setting
from tests.forked import NURSERY, run_recorded
from tests.run_events import events


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
    launch: bool = False,
) -> KnobRun:
    """Run `script` as `train.py` of `folder` under `settings`; no hook may have raised.

    It is launched where that is asked for, or where something is to hold from the start of the
    process on: variables of `env` or of a knob, or arguments.
    """
    (folder / "train.py").write_text(script)
    knobs = load_config(folder).knobs
    if launch or env or _from_the_start(settings, knobs):
        done, run = _launched(gpurun, folder, settings, training, arguments, env)
    else:
        turned = tuple(Setting(name, value) for name, value in settings.items())
        run = Path(tempfile.mkdtemp(prefix="run-", dir=folder))
        spec = RunSpec(str(run), os.getpid(), turned, training, knobs)
        done = run_recorded(["train.py", *arguments], folder, spec)
    assert done.returncode == 0, done.stderr.decode()
    assert b"Warning" not in done.stderr, done.stderr.decode()
    assert events(run, "hook") == []
    told = [(e["knob"], e["outcome"], e["detail"]) for e in events(run, "knob")]
    return KnobRun(json.loads(done.stdout), told)


def bare(folder: Path, script: str) -> Any:
    """The JSON document that a script prints without gpurun."""
    (folder / "bare.py").write_text(script)
    done = NURSERY.run(["bare.py"], folder, os.environ)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def _from_the_start(settings: Mapping[str, Any], paths: tuple[str, ...]) -> bool:
    """Whether a setting speaks to the launcher; a knob of the test's own (at `paths`) does not."""
    knobs = {knob.name: knob for knob in all_knobs()}
    known = [(knobs[name], value) for name, value in settings.items() if name in knobs]
    return len(known) + len(paths) < len(settings) or any(
        knob.environment(value) or tuple(knob.arguments(value, ())) for knob, value in known
    )


def _launched(
    gpurun: Callable[..., Any],
    folder: Path,
    settings: dict[str, Any],
    training: tuple[str, ...],
    arguments: tuple[str, ...],
    env: Mapping[str, str] | None,
) -> tuple[subprocess.CompletedProcess[bytes], Path]:
    document = {
        "settings": settings, "training_loaders": training, "speedup": None,
        "fingerprint": {}, "command": [], "schema": "gpurun/settings@1",
    }  # fmt: skip
    (folder / "settings.json").write_text(json.dumps(document))
    consent = ("--allow", "pipeline,numerics,training")
    done = gpurun("--settings", "settings.json", *consent, "train.py", *arguments, env=env)
    runs = sorted((folder / ".gpurun" / "runs").iterdir(), key=lambda path: path.stat().st_mtime)
    return done, runs[-1]
