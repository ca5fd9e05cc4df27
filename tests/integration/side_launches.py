"""Launch both sides of a comparison and judge what they loaded, here or under another python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.trees.git import open_repository
from gpurun.bench.trees.module_origins import check_origins
from gpurun.bench.trees.prepared_sides import BASELINE, CURRENT, Side, prepared_sides
from gpurun.errors import GpurunError
from gpurun.launch.launch_command import child_environment
from gpurun.measure.run_events import read_run
from gpurun.records.codec import to_json
from gpurun.records.events import OriginsEvent
from gpurun.records.spec import RunSpec
from gpurun.rundir import find_home, new_run, write_json
from tests.conftest import REPOSITORY

Faults = Mapping[str, tuple[str, str, int]]
"""By side: what, what to do and exit code, for a side that is not its own tree."""


def launch(side: Side, home: Path, words: Sequence[str]) -> list[OriginsEvent]:
    """Run `python words...` on a side and return what its processes recorded of their modules."""
    run = new_run(home)
    spec = RunSpec(run_dir=str(run), launcher_pid=os.getpid(), trees=side.trees)
    write_json(run / "spec.json", to_json(spec))
    environment = child_environment(run / "spec.json", side.variables)
    done = subprocess.run(
        [side.python, *words],
        cwd=side.folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not (run / "spec.json.error").exists()
    logs = read_run(run).processes
    assert [hook.error for log in logs for hook in log.hooks] == []
    return [event for log in logs for event in log.origins]


def benchmark(folder: Path, **known: Any) -> Benchmark:
    """A benchmark of a script, as far as its sides are made by it."""
    usual = Benchmark("train", folder, "train.py", (), None, None, {}, (), (), {})
    return replace(usual, **known)


def faults(folder: Path, words: Sequence[str], made: Benchmark) -> Faults:
    """HEAD against HEAD~1, each launched once."""
    repository, home = open_repository(folder), find_home(folder)
    baseline = repository.first_parent(repository.head())
    assert baseline is not None
    found = {}
    commits = {BASELINE: baseline, CURRENT: None}
    with prepared_sides(repository, commits, home, made, home / "logs") as sides:
        for side in (sides.baseline, sides.current):
            try:
                check_origins(sides, side, launch(side, home, words))
            except GpurunError as error:
                found[side.name] = (error.what, error.todo, int(error.code))
    return found


def faults_under(
    python: Path, folder: Path, words: Sequence[str], setup: str | None = None, **env: str
) -> Faults:
    """The same with gpurun itself under another python, the one of a user's environment."""
    done = subprocess.run(
        [python, "-m", __name__, json.dumps([str(folder), list(words), setup, env])],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {side: tuple(fault) for side, fault in json.loads(done.stdout).items()}


def _main() -> None:
    folder, words, setup, env = json.loads(sys.argv[1])
    made = benchmark(Path(folder), setup=setup, env=env)
    print(json.dumps(faults(Path(folder), words, made)))


if __name__ == "__main__":
    _main()
