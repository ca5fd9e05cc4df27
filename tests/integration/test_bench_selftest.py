"""`gpurun bench selftest` for real: a script in a repository, three comparisons from real launches.

Steps last for what they sleep, the slow-down is large, and where other tests beside it disturb a
pair there may be more of them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpurun.records.bench.comparison import Selftest
from gpurun.records.codec import from_json
from tests.forked import NURSERY, REPOSITORY, as_text
from tests.repositories import commit, git, new_repository, state

SCRIPT = """
import torch, work
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 1)
for (x,) in DataLoader(TensorDataset(torch.zeros(400, 4)), batch_size=8):
    work.prepare()
    model(x).sum().backward()
"""
WORK = '"""Work."""\nimport time\ndef prepare():\n    time.sleep(0.04)\n'
TABLE = '[bench]\nscript = "train.py"\nsteps = 12\nmetrics = ["throughput"]\n'


@pytest.mark.slow  # quick twin: unit/test_bench_selftest.py
def test_the_gate_is_red_for_the_slower_side_alone_and_nothing_is_left_of_it(
    tmp_path: Path,
) -> None:
    folder = new_repository(tmp_path / "project")
    files = {"train.py": SCRIPT, "work.py": WORK, "gpurun.toml": TABLE, ".gitignore": ".gpurun/\n"}
    head = commit(folder, files)
    (folder / "work.py").write_text("raise ValueError('not committed')\n")
    before = _users(folder)
    words = ("selftest", "--threshold", "30%", "--max-pairs", "16", "--json", "../found.json")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = as_text(NURSERY.launch(("bench", *words), folder, environment))
    found = from_json(Selftest, json.loads((tmp_path / "found.json").read_text()))
    assert (found.verdict, found.commit, found.dirty) == ("pass", head, True), done.stderr
    assert done.returncode == 0
    pairs = sum(part.comparison.pairs for part in found.parts)
    assert 6 <= pairs <= 48
    expected = f"verdict=pass exit=0 unchanged=green slower=red faster=green pairs={pairs}"
    assert done.stderr.splitlines()[-1] == expected
    slower, faster = found.parts[1:]
    for part, slowed in ((slower, slower.comparison.current), (faster, faster.comparison.baseline)):
        slept = [launch.planted_step_seconds or 0.0 for launch in slowed.launches]
        assert min(slept) >= 0.9 * part.step_seconds
    assert (slower.comparison.slowdown or 0.0) > 0.3
    assert (faster.comparison.slowdown or 0.0) < -0.3
    assert all(any(run.iterdir()) for run in (folder / ".gpurun/runs").iterdir())
    kept = [json.loads(p.read_text()) for p in (folder / ".gpurun/benchmarks").glob("*.json")]
    assert [record["purpose"] for record in kept] == ["selftest"] * 6
    assert _users(folder) == before
    assert len(git(folder, "worktree", "list").splitlines()) == 1


def _users(folder: Path) -> dict[str, bytes | str]:
    """All that is the user's own."""
    return {k: v for k, v in state(folder).items() if not k.startswith((".git/", ".gpurun"))}
