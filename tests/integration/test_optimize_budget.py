"""What a budget leaves undone is said, remembered and gone on with; a dry run foretells it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.integration.tunings import configure, launch, lines, report_of, run_folder

TRAINING = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
torch.manual_seed(0)

class Slow(Dataset):
    def __len__(self):
        return 400_000 if sys.stdout.isatty() else 400  # trials have a terminal
    def __getitem__(self, index):
        time.sleep(0.005)
        draw = torch.Generator().manual_seed(index)
        return torch.randn(8, generator=draw), index % 2

model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(Slow(), batch_size=4):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
CUT_OFF = """
import sys, gpurun
from gpurun.tuner.proof import proof_launches
proof_launches.ProofLaunches._room = lambda self, seconds, rungs: not seconds
sys.exit(gpurun.main(sys.argv[1:]))
"""
"""gpurun whose budget ends with the first pair of the proof, which proves nothing, as if the gain
were small."""
STALLING = """
import time
from gpurun.knobs.api import Effect, Knob

class Stalling(Knob):
    name = "stalling"
    effect = Effect.NUMERICS
    order = 1
    likely = True
    def candidates(self, facts):
        return [1, 2]
    def apply(self, value, hooks):
        time.sleep(300)
"""


def test_a_dry_run_launches_the_script_once_and_says_what_would_be_tried(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    done = launch(tmp_path, "--optimize", "--dry-run", "--json", "plan.json", "train.py")
    said = lines(done)
    assert done.returncode == 0, done.stderr.decode()
    assert said[-1].startswith("verdict=dry_run exit=0")
    assert done.stdout == b"", "and nothing trains"
    assert sorted(p.name for p in (run_folder(tmp_path / ".gpurun") / "trials").iterdir()) == ["01"]
    assert any(line.startswith("gpurun: would try") and "loader_workers" in line for line in said)
    assert any(line.startswith("gpurun: time: the search up to ") for line in said)
    assert any(line.startswith("gpurun: memory: about ") for line in said)
    assert not (tmp_path / ".gpurun" / "tuned").exists()


@pytest.mark.slow
def test_a_trial_that_takes_too_much_of_the_budget_is_given_up_by_name(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    (tmp_path / "stalling.py").write_text(STALLING)
    configure(tmp_path, "allow = ['pipeline', 'numerics']\nbudget = '150s'")
    text = (tmp_path / "gpurun.toml").read_text()
    (tmp_path / "gpurun.toml").write_text(f'knobs = ["stalling.py"]\n{text}')
    done = launch(tmp_path, "--optimize", "--tune-only", "train.py")
    report = report_of(tmp_path)
    rows = [row for row in report["ladder"] if "stalling" in row["changes"]]
    assert len(rows) == 1, done.stderr.decode()
    reason = rows[0]["reason"].removeprefix("together: ")  # where load left no time for it alone
    assert reason.startswith("not tried to its end, ")
    assert "to start: `--budget" in rows[0]["reason"]
    given_up = [trial for trial in report["trials"] if "stalling" in trial["knobs"]]
    assert len(given_up) == 1, "and it is not tried again"
    later = [t for t in report["trials"] if t["number"] > given_up[0]["number"] and t["knobs"]]
    assert later, "the rest has its time"


@pytest.mark.slow
def test_a_proof_that_was_cut_off_claims_nothing_and_a_later_run_is_held_against_its_own(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    configure(tmp_path, "allow = ['pipeline']\nmax_trials = 4\nbudget = '12m'")
    words = [sys.executable, "-c", CUT_OFF, "--optimize", "--tune-only", "train.py"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    first = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, timeout=600, check=False
    )
    assert first.returncode == 3, first.stderr.decode()
    assert any(
        line.startswith("gpurun: Not proven yet: the budget ended first (so far ")
        and line.endswith("; a larger `--budget` has room for more pairs")
        for line in lines(first)
    ), first.stderr.decode()
    refused = launch(tmp_path, "--tuned", "train.py")
    assert lines(refused)[0] == "gpurun: tuned, nothing proven: the budget ended first"
    again = launch(tmp_path, "--optimize", "train.py")
    report = report_of(tmp_path)
    assert report["verdict"] == "faster", again.stderr.decode()
    assert any("promised " in line and "running " in line for line in lines(again))
