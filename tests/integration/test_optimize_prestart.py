"""The next trial's process starts while one runs, and the script cannot tell the difference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Gpurun
from tests.integration.tunings import configure, lines, report_of, run_folder, training

SEEN = """
import json, os, sys
seen = {"argv": sys.argv, "file": __file__, "name": __name__, "path": sys.path,
        "spec": str(__spec__), "cwd": os.getcwd(), "orig_argv": sys.orig_argv,
        "environment": sorted(set(os.environ) - {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC"})}
print("seen", json.dumps(seen))
"""
"""A side of a live pair sets the variable that is left out: NCCL is to bear that it is frozen."""


def seen(folder: Path) -> list[dict[str, Any]]:
    """What the script saw in each trial, in their order."""
    found = []
    for log in sorted(run_folder(folder / ".gpurun").glob("trials/*/output.log")):
        line = next(x for x in log.read_text().splitlines() if x.startswith("seen "))
        found.append(json.loads(line.removeprefix("seen ")))
    return found


def early(folder: Path) -> list[bool]:
    """Of each trial, whether its process was started before its turn."""
    trials = sorted(run_folder(folder / ".gpurun").glob("trials/*"))
    return [(trial / "control" / "run_spec.json").exists() for trial in trials]


@pytest.mark.slow
def test_later_trials_are_started_early_and_see_what_the_first_saw(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    (tmp_path / "train.py").write_text(SEEN + training(80, sleep=0.008, pause=0.01))
    configure(tmp_path, "allow = ['pipeline']\nmax_trials = 3\nbudget = '10m'")
    done = gpurun("--optimize", "--tune-only", "train.py", "--flag", "x", timeout=800)
    assert done.returncode in (0, 3), lines(done)
    started_early = early(tmp_path)
    assert len(started_early) > 4
    assert started_early[:2] == [False, False], "the first leaves behind what all others see"
    assert sum(started_early) >= 2
    views = seen(tmp_path)
    assert len(views) == len(started_early)
    for view, trial in zip(views[1:], report_of(tmp_path)["trials"][1:], strict=True):
        if not {"cpu_threads", "host_allocator"} & trial["knobs"].keys():  # they set variables
            assert view == views[0]
    last = len(report_of(tmp_path)["trials"])
    folders = sorted(path.name for path in run_folder(tmp_path / ".gpurun").glob("trials/*"))
    assert folders[-1] == f"{last:02d}", "of a process that was never used nothing is left"


@pytest.mark.slow  # quick twin: unit/test_trial_prestart.py
def test_a_script_that_sets_variables_before_it_imports_torch_has_none(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    setting = "import os\nos.environ['OMP_NUM_THREADS'] = '1'\n"
    (tmp_path / "train.py").write_text(setting + training(120))
    configure(tmp_path, "allow = ['pipeline']\nmax_trials = 3\nbudget = '10m'")
    done = gpurun("--optimize", "--tune-only", "train.py", timeout=800)
    assert done.returncode in (0, 3), lines(done)
    assert not any(early(tmp_path))
    why = "trials do not start while another one runs: the script sets OMP_NUM_THREADS before"
    assert any(line.startswith(why) for line in report_of(tmp_path)["decisions"])
