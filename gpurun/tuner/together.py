"""All likely changes at once, then what each of them is worth in the set.

Changes act on each other: bfloat16 alone can lose where kernels are too small, and gain once the
launches are few. And a launch is dear, nearly all of it start-up. So one trial takes every change
that is likely to gain; then trials that leave one out show its share, the doubtful ones first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpurun.knobs.api import Effect, Knob, Skip
from gpurun.records.failure import FailureKind
from gpurun.records.tuning import GuardVerdict
from gpurun.tuner import asking
from gpurun.tuner import facts as facts_of
from gpurun.tuner.asking import KnobRaised
from gpurun.tuner.screening import (
    LEAST_GAIN,
    Screening,
    State,
    companion_rows,
    gain_over,
    idle,
    ladder_row,
    not_applied,
    speedup_over,
    strongest,
)
from gpurun.tuner.trial import Trial

DEAR_SECONDS = 10.0
"""What takes so long to start is compiled."""
NOT_MEASURED = "one of the set, its own share not measured"


@dataclass(frozen=True)
class Member:
    """One likely change of a set, and the settings of other knobs that go with it."""

    knob: Knob
    value: Any
    companions: dict[str, Any]

    @property
    def settings(self) -> dict[str, Any]:
        """What it sets, its companions included."""
        return {self.knob.name: self.value, **self.companions}


def likely_members(knobs: Sequence[Knob], state: State) -> list[Member]:
    """The first value of each knob that is likely to gain, each on the ground of those before."""
    facts = state.facts
    found: list[Member] = []
    for knob in knobs:
        if knob.name in facts.current or idle(knob, facts) or not asking.is_likely(knob, facts):
            continue
        values = asking.candidates(knob, facts)
        if isinstance(values, Skip) or not values:
            continue
        try:
            companions = asking.companions(knob, facts, values[0])
        except KnobRaised:
            continue  # it says so when it is tried by itself
        companions = {k: v for k, v in companions.items() if k not in facts.current}
        found.append(Member(knob, values[0], companions))
        facts = facts_of.under(facts, {**facts.current, **found[-1].settings}, facts.result)
    return found


class Together:
    """Tries sets of changes, and afterwards what each is worth.

    `settled`: the values of knobs of which a set has told all there is to know. `companions`: names
    of those that were set for the sake of another.
    """

    def __init__(self, screening: Screening, knobs: Sequence[Knob], state: State) -> None:
        self.settled: dict[str, Any] = {}
        self.companions: set[str] = set()
        self._effects = {knob.name: knob.effect for knob in knobs}
        self._screening = screening
        self._before = (dict(state.settings), state.best)
        self._adopted: list[Member] = []

    def try_set(self, members: Sequence[Member], state: State) -> bool:
        """Launch them at once and adopt them if they gain; False: to be tried one by one."""
        group = list(members)
        while len(group) > 1 and not self._screening.exhausted(state):
            said = ", ".join(f"{name} {value}" for m in group for name, value in m.settings.items())
            self._screening.note(f"all at once: {said}")
            trial = self._launch(group, state)
            culprit = _culprit(group, trial)
            if culprit is not None:
                self._drop(culprit, trial, trial.record.reason, state)
                group.remove(culprit)
                continue
            effect = strongest(m.knob.effect for m in group)
            reason, guard = self._screening.objection(effect, trial, state)
            if reason is None:
                return self._adopt(group, trial, guard, state)
            self._screening.note(f"not all at once: {reason}")
            group = self._safer(group, state)
        return False

    def _safer(self, group: Sequence[Member], state: State) -> list[Member]:
        """What is left of a set that is of no use: first what starts slowly goes, for it is the
        likeliest to fail, then all that changes numbers; nothing is left in the end.
        """
        dear = max(group, key=lambda m: asking.seconds_to_start(m.knob, state.facts))
        if asking.seconds_to_start(dear.knob, state.facts) >= DEAR_SECONDS:
            return [m for m in group if m is not dear]
        safe = [m for m in group if m.knob.effect is Effect.PIPELINE]
        return safe if len(safe) < len(group) else []

    def leave_one_out(self, state: State) -> None:
        """Measure the share of each adopted change, the doubtful first; drop those without one."""
        adopted = [m for m in self._adopted if state.settings.get(m.knob.name) == m.value]
        pipeline = Effect.PIPELINE
        for member in sorted(adopted, key=lambda m: (m.knob.effect is pipeline, -m.knob.order)):
            rest = {k: v for k, v in state.settings.items() if k not in member.settings}
            before, measured = self._before
            if rest == before:
                self._learn(member, rest, measured, state)
                continue
            if self._screening.exhausted(state):
                break
            why = self._screening.too_slow_without(member.knob, state)
            if why is not None:
                self._screening.note(f"{member.knob.name}: its share is not measured: {why}")
                continue
            trial = self._screening.launch(rest, [member.knob], state)
            effect = strongest(self._effects[name] for name in rest if name in self._effects)
            reason, _ = self._screening.objection(effect, trial, state)
            if reason is None:
                self._learn(member, rest, trial, state)
            else:
                self._screening.note(f"{member.knob.name}: kept, for without it: {reason}")

    def _launch(self, group: Sequence[Member], state: State) -> Trial:
        settings = dict(state.settings)
        for member in group:
            settings |= member.settings
        return self._screening.launch(settings, [m.knob for m in group], state)

    def _adopt(
        self, group: list[Member], trial: Trial, guard: GuardVerdict | None, state: State
    ) -> bool:
        """Keep the set if it gains; members that did not apply are no part of it."""
        gain = gain_over(trial, state.best)
        if gain < LEAST_GAIN:
            self._screening.note(f"all at once: ×{gain:.3g}: trying them one by one")
            return False
        settings = dict(state.settings)
        for member in group:
            reason = not_applied(member.knob, trial, state.facts.argv)
            if reason is not None:
                self._drop(member, trial, reason, state)
                continue
            settings |= member.settings
            self.settled[member.knob.name] = member.value
            self.companions |= member.companions.keys()
            self._adopted.append(member)
            row = ladder_row(
                member.knob, member.value, trial,
                speedup=None, guard=guard, kept=True, reason=NOT_MEASURED,
            )  # fmt: skip
            state.ladder += [row, *companion_rows(row, member.companions)]
        state.move(settings, trial)
        self._screening.note(f"all at once: ×{gain:.3g}, kept")
        return True

    def _drop(self, member: Member, trial: Trial, reason: str, state: State) -> None:
        self.settled[member.knob.name] = member.value
        row = ladder_row(member.knob, member.value, trial, speedup=None, guard=None, reason=reason)
        state.ladder.append(row)

    def _learn(self, member: Member, rest: dict[str, Any], without: Trial, state: State) -> None:
        """Write a change's share into its row; without a gain the search goes on without it."""
        share = gain_over(state.best, without)
        speedup = speedup_over(state.best, without)
        kept = share >= LEAST_GAIN
        for number, row in enumerate(state.ladder):
            if row.kept and row.knob == member.knob.name:
                why = "" if kept else "no gain"
                state.ladder[number] = replace(row, speedup=speedup, kept=kept, reason=why)
            elif row.kept and not kept and row.knob in member.companions:
                state.ladder[number] = replace(row, kept=False)
        self._screening.note(
            f"{member.knob.name}: ×{share:.3g} in the set{'' if kept else ', dropped'}"
        )
        if not kept:
            state.move(rest, without)


def _culprit(group: Sequence[Member], trial: Trial) -> Member | None:
    """The member on whose own account a trial is of no use."""
    failure = trial.failure
    if failure is None or failure.kind is not FailureKind.KNOB_FAILED:
        return None
    return next((member for member in group if member.knob.name == failure.knob), None)
