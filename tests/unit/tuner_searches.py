"""Searches of made-up knobs, without a launch: for the tests of the tuner's sets of changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob, Skip
from gpurun.records.facts import Facts
from gpurun.tuner.search.knob_search import KnobSearch
from gpurun.tuner.search.screening import SearchLimits, SearchState, StartupSeconds
from gpurun.tuner.trial_length import PROBE
from gpurun.tuner.tuning_trial import Trial, TrialRequest
from tests.unit.knob_facts import facts
from tests.unit.tuner_trials import judge_of, trial


class Likely(Knob):
    """A change that is likely to gain."""

    name: ClassVar[str] = "first"
    effect: ClassVar[Effect] = Effect.PIPELINE
    order: ClassVar[int] = 1
    likely: ClassVar[bool] = True
    values: ClassVar[Sequence[Any]] = (True,)

    def candidates(self, facts: Facts) -> Sequence[Any] | Skip:
        return self.values

    def apply(self, value: Any, hooks: Hooks) -> None:
        raise AssertionError("nothing is launched here")


class Second(Likely):
    name: ClassVar[str] = "second"
    order: ClassVar[int] = 2


class Rounding(Likely):
    name: ClassVar[str] = "rounding"
    effect: ClassVar[Effect] = Effect.NUMERICS
    order: ClassVar[int] = 3


class Compiled(Likely):
    name: ClassVar[str] = "compiled"
    effect: ClassVar[Effect] = Effect.NUMERICS
    order: ClassVar[int] = 5
    startup_seconds: ClassVar[float] = 30.0


class Doubtful(Likely):
    name: ClassVar[str] = "doubtful"
    order: ClassVar[int] = 4
    likely: ClassVar[bool] = False
    values: ClassVar[Sequence[Any]] = ("a", "b")


Rate = Callable[[dict[str, Any]], float | None]


def searched(
    knobs: Sequence[Any],
    rate: Rate,
    *,
    trials: int = 99,
    of: Callable[[TrialRequest], Trial] | None = None,
    late: Callable[[Trial, StartupSeconds], bool] = lambda best, startup: False,
    base: Trial | None = None,
) -> tuple[SearchState, list[dict[str, Any]], list[str]]:
    """The state after a search, the settings launched, and what was noted."""
    asked: list[dict[str, Any]] = []
    notes: list[str] = []

    def launch(request: TrialRequest) -> Trial:
        asked.append(dict(request.settings))
        return of(request) if of else trial(rate(asked[-1]), request.settings)

    base = base or trial(100.0)
    assert base.evidence is not None
    state = SearchState({}, base, facts(), judge_of(base.evidence, base.evidence))
    limits = SearchLimits(trials, late, frozenset(Effect))
    KnobSearch(launch, notes.append, PROBE, limits).run(knobs, state)
    return state, asked, notes


def product(**factors: float) -> Rate:
    """100 samples/s, times the factor of each change that is set."""

    def rate(settings: dict[str, Any]) -> float:
        result = 100.0
        for name in settings:
            result *= factors.get(name, 1.0)
        return result

    return rate


def kept(state: SearchState) -> dict[str, float | None]:
    return {row.knob: row.speedup for row in state.ladder if row.kept}
