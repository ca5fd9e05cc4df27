"""A disk that fills while trials run: one clear line, nothing hangs, what was recorded stays."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.isolation_launcher import ME
from tests.integration.launched import DEADLINE_SECONDS
from tests.integration.small_disk import on_a_small_disk
from tests.integration.tunings import configure, lines, training

LIMITED_LOG = """
import os, resource, sys
from pathlib import Path
from gpurun.isolation.isolation_mode import Mode
from gpurun.isolation.sandbox import LaunchSpec, Sandbox
cwd = Path(sys.argv[1])
told = cwd / "told"
told.mkdir()
argv = ("sh", "-c", "until [ -e told/go ]; do sleep 0.02; done; seq 100000; exit 3")
spec = LaunchSpec(argv, dict(os.environ), cwd, (told,), (), Mode.OVERLAY, cwd.parent / "log")
with Sandbox(spec) as sandbox:
    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
    (told / "go").touch()  # the limit is the launcher's, not the sandbox's
    print(sandbox.wait(240))
"""
TUNE = """
( until ls .gpurun/runs/*/trials/{trial}/events-* > /dev/null 2>&1; do sleep 0.02; done
  cat /dev/zero > ballast 2> /dev/null ) &
filler=$!
"$0" -m gpurun --optimize --tune-only train.py
code=$?
kill $filler 2> /dev/null
cp -r .gpurun ../kept
exit $code
"""


def test_a_trial_that_prints_more_than_there_is_room_for_goes_on(open_path: Path) -> None:
    cwd = open_path / "project"
    cwd.mkdir()
    printed, _ = ME.start(LIMITED_LOG, str(cwd)).communicate(timeout=DEADLINE_SECONDS)
    assert printed == "3\n"
    assert (open_path / "log").stat().st_size == 5000


@pytest.mark.slow
@pytest.mark.parametrize("trial", [2, 4])
def test_a_disk_that_fills_while_tuning_is_one_line_and_the_trials_before_are_kept(
    tmp_path: Path, clean_environment: dict[str, str], trial: int
) -> None:
    """In the search, and in the proof."""
    source = training(120, sleep=0.008, pause=0.01) + "    print('.' * 200, flush=True)\n"
    (tmp_path / "train.py").write_text(source)
    configure(tmp_path, "allow = ['pipeline']\nmax_trials = 3\nbudget = '10m'")
    command = TUNE.format(trial=f"{trial:02d}")
    done = on_a_small_disk(tmp_path, clean_environment, command, kilobytes=3000)
    assert done.returncode == 2, done.stderr.decode()
    assert done.stdout == b""
    said = lines(done)
    assert "Traceback" not in done.stderr.decode(), done.stderr.decode()
    told = [line for line in said if "written" in line]
    assert told == ["gpurun: records cannot be written: No space left on device"]
    assert said[-1] == "verdict=error exit=2"
    for before in range(1, trial):
        (folder,) = (tmp_path / "kept").glob(f"runs/*/trials/{before:02d}")
        record = json.loads((folder / "trial.json").read_text())
        assert record["samples_per_second"] > 0
        assert json.loads((folder / "result.json").read_text())["steps"] > 0
