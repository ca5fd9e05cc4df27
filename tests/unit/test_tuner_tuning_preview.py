"""What --dry-run says by the probe alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob, Skip
from gpurun.records.facts import Facts
from gpurun.tuner.search.screening import SearchState
from gpurun.tuner.time_budget import TimeBudget
from gpurun.tuner.tuning_preview import PreviewInputs, preview_lines
from tests.unit.knob_facts import facts
from tests.unit.tuner_trials import judge_of, trial

MIB = 1 << 20


class First(Knob):
    name: ClassVar[str] = "first"
    effect: ClassVar[Effect] = Effect.PIPELINE
    likely: ClassVar[bool] = True

    def candidates(self, facts: Facts) -> Sequence[Any] | Skip:
        return [2, 4]

    def apply(self, value: Any, hooks: Hooks) -> None:
        raise AssertionError("nothing is launched here")


class Doubtful(First):
    name: ClassVar[str] = "doubtful"
    likely: ClassVar[bool] = False


class Slow(Doubtful):
    name: ClassVar[str] = "slow"
    effect: ClassVar[Effect] = Effect.NUMERICS
    startup_seconds: ClassVar[float] = 60.0


class Idle(Doubtful):
    name: ClassVar[str] = "idle"

    def candidates(self, facts: Facts) -> Sequence[Any] | Skip:
        return Skip("no GPU")


class Idler(Idle):
    name: ClassVar[str] = "idler"


class Training(Doubtful):
    name: ClassVar[str] = "training"
    effect: ClassVar[Effect] = Effect.TRAINING


ALLOWED = frozenset({Effect.PIPELINE, Effect.NUMERICS})
BATCHES = [{"batch_size": 64}, {"batch_size": 128}]


def told(
    budget: float = 100.0, in_turn: str = "", allowed: frozenset[Effect] = ALLOWED
) -> list[str]:
    probe = trial(100.0, seconds=8.0)
    probe = replace(probe, record=replace(probe.record, peak_memory_bytes=300 * MIB))
    knobs = [First(), Doubtful(), Slow(), Idle(), Idler(), Training()]
    times = TimeBudget(time.monotonic() + budget, lambda knob: False)
    times.live = not in_turn
    times.baseline(probe, started_early=False)
    state = SearchState({}, probe, facts(), judge_of())
    return preview_lines(
        PreviewInputs(knobs, allowed, state, BATCHES, in_turn, most_trials=15), times
    )


def test_it_says_what_would_be_tried_and_why_the_rest_would_not() -> None:
    lines = told()
    assert lines[0] == "launched once, the script as it is: 100 samples/s, 8.00 s"
    assert "would try at once: first 2" in lines
    assert "would try doubtful 2, doubtful 4" in lines
    assert "would not try idle, idler: no GPU" in lines
    assert "would not try training: training changes are not allowed" in lines
    later = "would try batch sizes 64, 128 if the proof leaves time; to apply: --allow "
    later += "pipeline,numerics,training"
    assert later in lines


def test_what_a_budget_has_no_room_for_is_said_with_one_that_has() -> None:
    why = "a trial takes 1 min 08 s: too much of this budget; try `--budget 4m`"
    assert f"would not try slow: {why}" in told(100.0)
    assert "would try slow 2, slow 4 (1 min more to start)" in told(600.0)


def test_it_says_how_long_it_takes_and_with_how_much_memory() -> None:
    lines = told(600.0)
    assert lines[-2].startswith("time: up to 8 trials of about 8.00 s, then 2 to 3 live pairs")
    assert "ends it" not in lines[-2]
    assert lines[-1].startswith("memory: about 300 MiB of the main process in a trial, up to ")
    short = told(30.0, in_turn="the script runs in several ranks")
    assert (
        "launches of each side one after the other (the script runs in several ranks)" in short[-2]
    )
    assert short[-2].endswith("the budget of 30.0 s ends it")
    assert short[-1].endswith("one launch at a time")
