"""A setting counts as applied only where it was: what torch refuses and what raises has failed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpurun.measure.run_summary import summarise_run
from gpurun.records.result import KnobOutcome
from gpurun.records.spec import RunSpec, Setting
from gpurun.tuner.search.objections import not_applied
from tests.forked import run_recorded
from tests.unit.tuner_searches import Planted
from tests.unit.tuner_trials import trial

KNOB = """
from gpurun.knobs.api import Effect, Knob

class Planted(Knob):
    name, effect = "planted", Effect.PIPELINE
    def candidates(self, facts):
        return [1]
    def apply(self, value, hooks):
        PART

class Raises:
    def __enter__(self):
        raise RuntimeError("entering")
    def __exit__(self, *how):
        return None

class RaisesLater(Raises):
    def __enter__(self):
        return None
    def __exit__(self, *how):
        raise RuntimeError("leaving")

def raises(*args):
    raise RuntimeError("mapping")
"""

TRAIN = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
for x in DataLoader(torch.ones(4, 1)):
    optimizer.zero_grad()
    model(x).sum().backward()
    optimizer.step()
print(optimizer.param_groups[0]["lr"], model(x).isfinite().all().item())
"""


def loader_edit(change: str, then: str = "") -> str:
    return (
        f"hooks.before_loader(lambda call: (call.arguments.update({change}), "
        f"hooks.applied('the loader'){then}))"
    )


def outcome(folder: Path, part: str) -> KnobOutcome:
    """What the record says of a knob whose `apply` does `part`; the training is as without it."""
    (folder / "planted.py").write_text(KNOB.replace("PART", part))
    (folder / "train.py").write_text(TRAIN)
    knob = str(folder / "planted.py")
    spec = RunSpec(str(folder / "run"), os.getpid(), (Setting("planted", 1),), (), (knob,))
    done = run_recorded(["train.py"], folder, spec)
    assert (done.returncode, done.stdout) == (0, b"0.125 True\n"), done.stderr.decode()
    (told,) = summarise_run(folder / "run", exit_code=0, wall_seconds=1.0).knobs
    return told


@pytest.mark.parametrize(
    ("part", "detail"),
    [
        (loader_edit("num_workers=-5"), "the loader: refused: ValueError: num_workers option"),
        (loader_edit("batch_size=2", ", 1 / 0"), "ZeroDivisionError: division by zero"),
        ("hooks.applied(); hooks.on_root(raises)", "RuntimeError: mapping"),
        ("hooks.applied(); hooks.around_root_call(Raises)", "RuntimeError: entering"),
        ("hooks.applied(); hooks.around_root_call(RaisesLater)", "RuntimeError: leaving"),
        (
            "import contextlib; hooks.applied(); "
            "hooks.around_root_call(contextlib.nullcontext, raises)",
            "RuntimeError: mapping",
        ),
    ],
)
def test_what_torch_refuses_and_what_raises_has_failed(
    tmp_path: Path, part: str, detail: str
) -> None:
    told = outcome(tmp_path, part)
    assert told.outcome == "failed"
    assert told.detail.startswith(detail)
    reason = not_applied(Planted("planted", [1]), trial(1.0, {"planted": 1}, outcomes=(told,)), ())
    assert reason == f"failed: {told.detail}"


def test_a_detail_that_is_no_text_is_recorded_as_one(tmp_path: Path) -> None:
    told = outcome(tmp_path, "hooks.before_loader(lambda call: hooks.applied([1]))")
    assert told == KnobOutcome("planted", "applied", "[1]")


def test_what_torch_takes_is_applied(tmp_path: Path) -> None:
    told = outcome(tmp_path, loader_edit("batch_size=2"))
    assert told == KnobOutcome("planted", "applied", "the loader")


def test_a_value_that_a_knob_does_not_have_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAIN)
    spec = RunSpec(str(tmp_path / "run"), os.getpid(), (Setting("attention", "flash"),), (), ())
    done = run_recorded(["train.py"], tmp_path, spec)
    assert (done.returncode, done.stdout) == (0, b"0.125 True\n"), done.stderr.decode()
    (told,) = summarise_run(tmp_path / "run", exit_code=0, wall_seconds=1.0).knobs
    assert told == KnobOutcome("attention", "skipped", "unknown value 'flash' (there is: sdpa)")
