"""The real Nsight Systems around a script; without a GPU it records gpurun's NVTX ranges."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from gpurun.profilers.recorded_profiles import recorded_profiles
from gpurun.timeline import from_nsys
from gpurun.timeline.model import Phase
from gpurun.timeline.report_exports import exported
from tests.conftest import Gpurun
from tests.integration.test_profile_window import script

SECRET = "planted-secret"
nsys = pytest.mark.skipif(shutil.which("nsys") is None, reason="nsys is not installed")


@nsys
def test_a_script_under_nsys(
    tmp_path: Path, gpurun: Gpurun, clean_environment: dict[str, str]
) -> None:
    script(tmp_path, "if step == 25: print('the end'); sys.exit(3)")
    done = gpurun(
        "profile", "--sources", "nsys,host", "--steps", "5", "--json", "p.json", "train.py",
        cwd=tmp_path, env={**clean_environment, "WANDB_API_KEY": SECRET},
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (3, b"the end\n"), done.stderr
    (run_dir,) = (tmp_path / ".gpurun" / "runs").iterdir()
    (report,) = (run_dir / "profile").glob("*.nsys-rep")
    _check_ranges(run_dir, report)
    _check_secret(done.stderr, tmp_path / "p.json", run_dir, report)


def _check_ranges(run_dir: Path, report: Path) -> None:
    """Nsight Systems has the ranges that the runtime noted, at the same time."""
    (found,) = recorded_profiles(run_dir)
    assert "nsys" in found.timeline.sources
    assert found.failures == ()
    with exported(report) as database:
        (timeline,) = from_nsys.read(database)
    assert not database.exists()
    for phase in Phase:
        own = [r for r in found.timeline.ranges or () if r.name == phase.value]
        seen = [r for r in timeline.ranges or () if r.name == phase.value]
        assert len(own) <= len(seen) <= len(own) + 1  # the step in which the window ends is open
        for ours, theirs in zip(own, seen, strict=False):
            assert abs(ours.begin_ns - theirs.begin_ns) < 100_000_000, phase


def _check_secret(stderr: bytes, document: Path, run_dir: Path, report: Path) -> None:
    """The report of nsys holds the environment, is its owner's alone, and nothing else holds it."""
    assert stat.S_IMODE(os.stat(report).st_mode) == 0o600
    assert json.loads(document.read_text())["steps_profiled"] == 5
    assert SECRET not in document.read_text()
    assert SECRET not in stderr.decode()
    for path in run_dir.rglob("*"):
        assert path == report or not path.is_file() or SECRET not in path.read_text(), path


def test_nsys_that_is_not_there_is_an_error_that_says_what_to_do(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    script(tmp_path, "break")
    done = gpurun("profile", "--sources", "nsys", "train.py", cwd=tmp_path, env={"PATH": "/bin"})
    assert done.returncode == 2
    assert done.stderr.startswith(
        b"gpurun: --sources nsys: nsys is not installed\ngpurun: install Nsight Systems"
    )
