"""Searches of made-up knobs, without a launch: for the tests of the tuner's search."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpurun.knobs.api import Effect, Hooks, Knob, Skip
from gpurun.records.facts import Facts
from gpurun.tuner.phases import Phases
from gpurun.tuner.search.search_state import SearchState
from gpurun.tuner.search.search_trials import SearchTrials
from gpurun.tuner.search.stage_search import StageSearch
from gpurun.tuner.trial_length import PROBE
from gpurun.tuner.tuning_trial import Trial, TrialRequest
from tests.unit.knob_facts import facts
from tests.unit.tuner_trials import judge_of, trial

Rate = Callable[[dict[str, Any]], float | None]
Launch = Callable[[TrialRequest], Trial]


class Planted(Knob):
    """A knob that is made as the test says; a likely one, unless it says otherwise."""

    name = "planted"
    effect = Effect.PIPELINE

    def __init__(
        self,
        name: str,
        values: Sequence[Any] | Skip = (True,),
        *,
        further: Any = None,
        effect: Effect = Effect.PIPELINE,
        stage: str = "",
        **parts: Any,
    ) -> None:
        """`further`: the refinement of any value. `parts`: further attributes of the knob."""
        parts = {"likely": True, "order": 1, **parts}
        for part, value in {"name": name, "effect": effect, "stage": stage, **parts}.items():
            setattr(self, part, value)
        self._values, self._further = values, further

    def candidates(self, facts: Facts) -> Sequence[Any] | Skip:
        return self._values

    def refine(self, facts: Facts, value: Any, gain: float) -> Any | None:
        return self._further

    def apply(self, value: Any, hooks: Hooks) -> None:
        raise AssertionError("nothing is launched here")


def data(name: str = "data", *words: Any, **parts: Any) -> Planted:
    return Planted(name, *words, stage="data", **parts)


def transfer(name: str = "transfer", *words: Any, **parts: Any) -> Planted:
    return Planted(name, *words, stage="transfer", **parts)


def precision(name: str = "precision", *words: Any, **parts: Any) -> Planted:
    return Planted(name, *words, stage="precision", **{"effect": Effect.NUMERICS, **parts})


def kernels(name: str = "kernels", *words: Any, **parts: Any) -> Planted:
    return Planted(name, *words, stage="kernels", **{"effect": Effect.NUMERICS, **parts})


def compiled(name: str = "compiled", *words: Any, **parts: Any) -> Planted:
    return Planted(name, *words, stage="compile", **{"effect": Effect.NUMERICS, **parts})


def doubtful(name: str = "doubtful", *words: Any, **parts: Any) -> Planted:
    return Planted(name, *words, **{"likely": False, **parts})


@dataclass
class Searched:
    """A search that is over: its state, the settings launched in order, and what was noted."""

    state: SearchState
    asked: list[dict[str, Any]]
    notes: list[str]
    untried: list[str]

    @property
    def settings(self) -> dict[str, Any]:
        return self.state.settings

    @property
    def names(self) -> list[set[str]]:
        """The knobs of each trial."""
        return [set(settings) for settings in self.asked]

    @property
    def reasons(self) -> dict[str, str]:
        """By change ("autocast bf16"), why it was dropped."""
        return {
            ", ".join(f"{name} {value}" for name, value in row.changes.items()): row.reason
            for row in self.state.dropped
        }

    def noted(self, beginning: str) -> bool:
        return any(note.startswith(beginning) for note in self.notes)


def searched(
    knobs: Sequence[Knob],
    rate: Rate = lambda settings: 100.0,
    *,
    of: Launch | None = None,
    trials: int = 99,
    allowed: Collection[Effect] = tuple(Effect),
    pressing: Sequence[str] = (),
    base: Trial | None = None,
    known: Facts | None = None,
    phases: Phases | None = None,
) -> Searched:
    """A search from a script of 100 samples/s. `of`: its launches, if a rate does not say all."""
    asked: list[dict[str, Any]] = []
    notes: list[str] = []

    def launch(request: TrialRequest) -> Trial:
        if not request.rounded:
            asked.append(dict(request.settings))
        return of(request) if of else trial(rate(dict(request.settings)), request.settings)

    base = base or trial(100.0)
    judge = judge_of(base.evidence, base.evidence, launch=launch, note=notes.append)
    state = SearchState({}, base, known or facts(), judge)
    phases = phases or Phases(time.monotonic() + 1e6)
    launches = SearchTrials(launch, notes.append, PROBE, phases, trials)
    StageSearch(launches, frozenset(allowed)).run(knobs, state, lambda trial: pressing)
    return Searched(state, asked, notes, launches.untried)


def product(**factors: float) -> Rate:
    """100 samples/s, times the factor of each change that is set."""

    def rate(settings: dict[str, Any]) -> float:
        result = 100.0
        for name in settings:
            result *= factors.get(name, 1.0)
        return result

    return rate


def in_turns(gain: float, error: float, settings: Mapping[str, Any] | None = None) -> Trial:
    """A trial that took turns with the reference."""
    measured = trial(100.0, settings or {})
    record = replace(measured.record, gain_over_reference=gain, gain_error=error)
    return replace(measured, record=record)


def by_turns(*figures: tuple[float, float]) -> Launch:
    """Launches whose gains over the reference, and their errors, come in this order."""
    coming = list(figures)
    return lambda request: in_turns(*coming.pop(0), request.settings)
