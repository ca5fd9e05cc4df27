"""A trial that lacked memory is not credited with the batch that it was to train."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpurun.measure.run_events import ProcessLog
from gpurun.records.events import OUT_OF_MEMORY, ProcessEvent, TraitEvent
from gpurun.tuner.search.lack_of_memory import trained_with_less
from gpurun.tuner.tuning_trial import Trial
from tests.unit.knob_facts import facts
from tests.unit.tuner_trials import trial


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
