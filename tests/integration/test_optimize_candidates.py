"""A candidate that hangs, dies, runs out of memory or breaks is a row of the ladder, no more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.tunings import launch, lines, report_of
from tests.once import once

KNOB = '''
from gpurun.knobs.api import Effect, Knob
from tests.once import once

class {title}(Knob):
    """A knob that goes wrong."""

    name = "{name}"
    effect = Effect.PIPELINE

    def candidates(self, facts):
        return [True]

    def apply(self, value, hooks):
        {apply}
'''
ON_STEP = "def act(n):\n            {}\n        hooks.on_step(act); hooks.applied()"
BROKEN = {
    "dies": ON_STEP.format("import os; os.kill(os.getpid(), 9)"),
    "eats": "import resource; hooks.applied(); hooks.on_root(lambda module: "
    "resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29)))",
    "hangs": ON_STEP.format("import time; n == 5 and time.sleep(600)"),
    "fails": "raise RuntimeError('no such kernel')",
    "raises": "def broken(module):\n            raise KeyError('weight')\n"
    "        hooks.on_root(broken); hooks.applied()",
    "exits": ON_STEP.format("import os; n == 3 and os._exit(3)"),
    "unmeasured": "hooks.skipped('this model has no such layer')",
    "poisons": "import torch\n        hooks.around_root_call(torch.enable_grad, "
    "lambda out: out * float('nan')); hooks.applied()",
}
IN_LAUNCHER = {
    "asks": "def candidates(self, facts):\n        raise ValueError('no such fact')",
    "prepares": "def environment(self, value):\n        raise OSError('no such node')",
    "accompanies": "def companions(self, facts, value):\n        return {'no_such_knob': 1}",
}
CHOSEN = {"MALLOC_MMAP_THRESHOLD_": "1048576"}
"""The user's own choice, beside which another allocation is not tried."""

SCRIPT = """
import multiprocessing, time, torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
torch.manual_seed(0)

class Data(Dataset):
    def __init__(self):
        self.change = lambda x: x + 1
    def __len__(self):
        return 160
    def __getitem__(self, index):
        time.sleep(0.002)
        return self.change(torch.ones(8) * index / 160), index % 2

if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    model = torch.nn.Linear(8, 2)
    batch = 4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.025 * batch)
    for x, y in DataLoader(Data(), batch_size=batch, shuffle=True):
        spare = bytearray(4 << 20)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[str], int]:
    """The report of a tuning with nothing but bad candidates, what it said, and its exit code."""
    return once(tmp_path_factory, "candidates", tune)


def tune(folder: Path) -> tuple[dict[str, Any], list[str], int]:
    """Tune the script there."""
    (folder / "knobs").mkdir()
    for name, apply in BROKEN.items():
        text = KNOB.format(title=name.title(), name=name, apply=apply)
        (folder / "knobs" / f"{name}.py").write_text(text)
    for name, method in IN_LAUNCHER.items():
        text = KNOB.format(title=name.title(), name=name, apply="hooks.applied()")
        (folder / "knobs" / f"{name}.py").write_text(f"{text}\n    {method}\n")
    (folder / "train.py").write_text(SCRIPT)
    limits = "allow = ['pipeline']\npatience = '30s'\nmax_trials = 26\nbudget = '12m'\n"
    (folder / "gpurun.toml").write_text(f"knobs = ['knobs']\n[optimize]\n{limits}")
    done = launch(folder, "--optimize", "--tune-only", "train.py", **CHOSEN)
    return report_of(folder), lines(done), done.returncode


@pytest.mark.slow
@pytest.mark.parametrize(
    ("knob", "status", "reason"),
    [
        ("dies", "killed", "killed from outside (SIGKILL), and not by the kernel"),
        ("eats", "oom", "MemoryError"),
        ("hangs", "timeout", "hangs: given up after 30 s without a sign of life"),
        ("raises", "skipped", "raises: KeyError: 'weight'"),
        ("fails", "skipped", "fails: RuntimeError: no such kernel"),
        ("exits", "failed", "exit code 3"),
    ],
)
def test_a_candidate_that_breaks_its_trial_is_rejected_with_the_reason(
    tuned: tuple[dict[str, Any], list[str], int], knob: str, status: str, reason: str
) -> None:
    report, _, _ = tuned
    row = row_of(report, knob)
    assert not row["kept"]
    assert reason in row["reason"]
    # a busy machine may have kept another change before: it is then among this trial's settings
    trial = next(t for t in report["trials"] if t["knobs"].get(knob) is True)
    assert trial["status"] == status


@pytest.mark.slow
@pytest.mark.parametrize(
    ("knob", "reason"),
    [("poisons", "the loss is not finite"), ("unmeasured", "this model has no such layer")],
)
def test_a_candidate_that_trains_otherwise_or_not_at_all_is_rejected(
    tuned: tuple[dict[str, Any], list[str], int], knob: str, reason: str
) -> None:
    row = row_of(tuned[0], knob)
    assert not row["kept"]
    assert reason in row["reason"]


@pytest.mark.slow
def test_a_knob_that_raises_in_the_launcher_is_skipped_with_the_reason(
    tuned: tuple[dict[str, Any], list[str], int],
) -> None:
    report, _, _ = tuned
    assert "asks: not tried: candidates raised ValueError: no such fact" in report["decisions"]
    reason = "prepares: environment raised OSError: no such node"
    assert row_of(report, "prepares")["reason"] == reason
    assert "there is no knob 'no_such_knob'" in row_of(report, "accompanies")["reason"]


@pytest.mark.slow
def test_a_data_set_that_cannot_be_pickled_is_no_candidate_for_spawned_workers(
    tuned: tuple[dict[str, Any], list[str], int],
) -> None:
    rows = [row for row in tuned[0]["ladder"] if "loader_workers" in row["changes"]]
    assert rows
    assert all("cannot be pickled" in row["reason"] and not row["kept"] for row in rows)


@pytest.mark.slow
def test_bad_candidates_are_no_failure_of_the_tuning(
    tuned: tuple[dict[str, Any], list[str], int],
) -> None:
    report, said, code = tuned
    assert code == 0
    assert said[-1].startswith("verdict=no_gain exit=0")
    assert report["statistically_significant"] is False
    assert report["chosen"]["knobs"] == {}
    assert report["chosen"]["samples_per_second"] == report["baseline"]["samples_per_second"]


def row_of(report: dict[str, Any], knob: str) -> dict[str, Any]:
    rows = [row for row in report["ladder"] if knob in row["changes"]]
    assert len(rows) == 1, report["ladder"]
    row: dict[str, Any] = rows[0]
    return row
