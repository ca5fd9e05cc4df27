"""The changes that a search may try, from what the knobs propose on the ground of the facts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpurun.arguments.options import Objective
from gpurun.formatting.knob_text import knobs_text
from gpurun.knobs.api import Effect, Knob, Skip
from gpurun.knobs.stages import stage_of
from gpurun.measure.optional_figures import known
from gpurun.records.facts import Facts
from gpurun.trials import knob_calls
from gpurun.trials.knob_calls import KnobRaised

LEAST_POTENTIAL = 1.03
"""A knob that acts on a part of the step too small to gain this much is not tried."""


@dataclass(frozen=True)
class Change:
    """A knob with the value to try, and the settings of other knobs that go with it."""

    knob: Knob
    value: Any
    companions: Mapping[str, Any] = field(default_factory=dict)

    @property
    def stage(self) -> str:
        """The stage of the ladder to which it belongs."""
        return stage_of(self.knob)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the change, its companions included."""
        return {self.knob.name: self.value, **self.companions}

    @property
    def text(self) -> str:
        """ "loader_workers 4, loader_prefetch 8"."""
        return knobs_text(self.settings)


def change_of(knob: Knob, value: Any, facts: Facts) -> Change:
    """The change with its companions; `KnobRaised` if the knob cannot tell them."""
    companions = knob_calls.companions(knob, facts, value)
    return Change(knob, value, {k: v for k, v in companions.items() if k not in facts.current})


def likely_changes(knobs: Sequence[Knob], facts: Facts) -> list[Change]:
    """The first value of each knob that is likely to gain, each on the ground of those before."""
    found: list[Change] = []
    for knob in knobs:
        if knob.name in facts.current or not knob_calls.is_likely(knob, facts):
            continue
        values = proposals(knob, facts)
        if isinstance(values, Skip) or not values:
            continue
        try:
            found.append(change_of(knob, values[0], facts))
        except KnobRaised:
            continue  # it says so when it is tried by itself
        facts = replace(facts, current={**facts.current, **found[-1].settings})
    return found


def settings_of(changes: Iterable[Change]) -> dict[str, Any]:
    """All their settings together."""
    return {name: value for change in changes for name, value in change.settings.items()}


def strongest_effect(effects: Iterable[Effect]) -> Effect:
    """The effect that says most about a set of changes."""
    found = set(effects)
    return next((e for e in (Effect.TRAINING, Effect.NUMERICS) if e in found), Effect.PIPELINE)


def proposals(knob: Knob, facts: Facts) -> Sequence[Any] | Skip:
    """The values to try at most, or why there are none."""
    reason = _too_small_part(knob, facts)
    values = Skip(reason) if reason else knob_calls.candidates(knob, facts)
    return values if isinstance(values, Skip) else values[: knob.most_values]


def _too_small_part(knob: Knob, facts: Facts) -> str | None:
    """Reason why the part of the step that a knob acts on is too small, or None."""
    step, split = facts.result.step_time_ms, facts.result.split
    if step is None or split is None or facts.objective != Objective.THROUGHPUT.value:
        return None
    if facts.device != "cpu" and knob.acts_on != "data":
        return None  # the parts are the host's times, which say little of the device's work
    passes = known((split.forward_ms, split.backward_ms))
    model = math.fsum(passes) if passes else None
    parts = {
        "data": split.data_wait_ms,
        "model": model,
        "optimizer": split.optimizer_ms,
    }
    part = parts.get(knob.acts_on)
    if part is None or part >= step.mean:
        return None
    most = step.mean / max(step.mean - part, 1e-9)
    if most >= LEAST_POTENTIAL:
        return None
    return f"{knob.acts_on} is {part / step.mean:.1%} of the step: at most ×{most:.2f}"
