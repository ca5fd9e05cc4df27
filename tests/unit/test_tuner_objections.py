"""A fast trial is not kept where a change did nothing, a start is dear, or less was trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpurun.measure.run_events import ProcessLog
from gpurun.records.events import ProcessEvent, TraitEvent
from gpurun.records.messages.traits import OUT_OF_MEMORY
from gpurun.records.result import KnobOutcome, StepTime
from gpurun.tuner.search.search_trials import not_applied, repaid_too_late, trained_with_less
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


@pytest.fixture
def lacking() -> Trial:
    """One whose script caught that the model ran out of memory."""
    process = ProcessEvent(
        pid=1, rank=None, local_rank=None, world_size=None, argv=("train.py",), python="3.11",
        unix_time_ns=0, clock_ns=0,
    )  # fmt: skip
    traits = (TraitEvent(trait=OUT_OF_MEMORY, detail="train.py:20"),)
    return replace(trial(100.0), log=ProcessLog(Path("events.jsonl"), process, traits=traits))


def test_a_model_that_ran_out_of_memory_is_named_with_its_line(lacking: Trial) -> None:
    reason = trained_with_less(lacking, facts())
    assert reason == "the model ran out of memory at train.py:20, and the script went on"


def test_a_script_that_lacks_memory_as_it_is_may_do_so_under_a_change(lacking: Trial) -> None:
    """It looks for its batch size by itself."""
    as_it_is = facts(traits={OUT_OF_MEMORY: "train.py:20"})
    assert trained_with_less(lacking, as_it_is) is None
