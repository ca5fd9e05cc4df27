"""A fast trial is not kept where a change did nothing, a start is dear, or less was trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpurun.measure.run_events import ProcessLog
from gpurun.records.events import OUT_OF_MEMORY, ProcessEvent, TraitEvent
from gpurun.records.result import KnobOutcome, StepTime
from gpurun.tuner.search.objections import not_applied, repaid_too_late, trained_with_less
from gpurun.tuner.tuning_trial import Trial
from tests.unit.knob_facts import facts
from tests.unit.tuner_searches import Planted
from tests.unit.tuner_trials import trial


class Flag(Planted):
    """A knob that only edits an argument, where there is one."""

    def arguments(self, value: Any, argv: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(str(value) if word == "0" else word for word in argv)


@pytest.mark.parametrize(
    ("argv", "outcomes", "reason"),
    [
        (("--workers", "0"), (), None),
        (("--workers", "2"), (), "not applied: nothing in the script called for it"),
        ((), (KnobOutcome("flag", "applied", ""),), None),
        ((), (KnobOutcome("flag", "skipped", "no loader"),), "not applied: no loader"),
        ((), (KnobOutcome("flag", "failed", "TypeError"),), "failed: TypeError"),
    ],
)
def test_a_change_had_an_effect_in_the_process_or_on_its_command_line(
    argv: tuple[str, ...], outcomes: tuple[KnobOutcome, ...], reason: str | None
) -> None:
    done = trial(150.0, {"flag": 2}, outcomes=outcomes)
    assert not_applied(Flag("flag"), done, argv) == reason


def started(rate: float, seconds: float, step_ms: float) -> Trial:
    """A trial with such a start and such steps."""
    found = trial(rate)
    assert found.result is not None
    pace = StepTime(step_ms, step_ms, step_ms, step_ms)
    return replace(found, result=replace(found.result, startup_seconds=seconds, step_time_ms=pace))


@pytest.mark.parametrize(("steps", "kept"), [(2_000, False), (4_000, True), (None, True)], ids=str)
def test_what_starts_slowly_must_be_repaid_by_the_whole_training(
    steps: int | None, kept: bool
) -> None:
    slow, without = started(133.0, 33.0, 30.0), started(100.0, 3.0, 40.0)
    reason = repaid_too_late(slow, without, facts(planned_steps=steps))
    said = "starts 30 s later, repaid after 3,000 steps: the training has 2,000"
    assert reason == (None if kept else said)
    quick = started(133.0, 12.0, 30.0)
    assert repaid_too_late(quick, without, facts(planned_steps=steps)) is None, "9 s may be chance"


# -- less than was asked for -----------------------------------------------------------------------


def with_batches(asked: int | None, seen: float | None) -> Trial:
    """A trial that was to train batches of `asked` instead of 32, and trained those of `seen`."""
    knobs = {} if asked is None else {"batch_size": {"batch_size": asked, "from": 32}}
    done = trial(100.0, knobs)
    assert done.result is not None
    return replace(done, result=replace(done.result, batch_size=seen))


@pytest.fixture
def lacking() -> Trial:
    """One whose script caught that the model ran out of memory."""
    process = ProcessEvent(
        pid=1, rank=None, local_rank=None, world_size=None, argv=("train.py",), python="3.11",
        unix_time_ns=0, clock_ns=0,
    )  # fmt: skip
    traits = (TraitEvent(trait=OUT_OF_MEMORY, detail="train.py:20"),)
    return replace(trial(100.0), log=ProcessLog(Path("events.jsonl"), process, traits=traits))


@pytest.mark.parametrize(
    ("asked", "seen", "accepted"),
    [(128, 128.0, True), (128, 127.0, True), (128, 64.0, False), (128, 32.0, False),
     (128, None, True), (None, 32.0, True)],
)  # fmt: skip
def test_the_batch_that_was_set_must_be_the_one_that_was_counted(
    asked: int | None, seen: float | None, accepted: bool
) -> None:
    reason = trained_with_less(with_batches(asked, seen), with_batches(None, 32.0), facts())
    assert (reason is None) == accepted, reason


def test_a_batch_is_compared_with_the_best_one_so_far() -> None:
    best = with_batches(64, 64.0)
    assert trained_with_less(with_batches(128, 128.0), best, facts()) is None
    reason = trained_with_less(with_batches(128, 64.0), best, facts())
    assert reason == "the size of its batches was 64 instead of 128"


def test_a_model_that_ran_out_of_memory_is_named_with_its_line(lacking: Trial) -> None:
    reason = trained_with_less(lacking, with_batches(None, 32.0), facts())
    assert reason == "the model ran out of memory at train.py:20, and the script went on"


def test_a_script_that_lacks_memory_as_it_is_may_do_so_under_a_change(lacking: Trial) -> None:
    """It looks for its batch size by itself."""
    as_it_is = facts(traits={OUT_OF_MEMORY: "train.py:20"})
    assert trained_with_less(lacking, with_batches(None, 32.0), as_it_is) is None
