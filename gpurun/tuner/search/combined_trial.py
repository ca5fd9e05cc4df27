"""Tries all likely changes at once, then measures what each is worth in the set.

Changes act on each other: bfloat16 alone can lose where kernels are too small, and gain once the
launches are few. A launch is expensive, and nearly all of it is start-up. So one trial takes every
change that is likely to gain. Then trials that leave one out show its share, the doubtful first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gpurun.knobs.api import Effect, Knob, Skip
from gpurun.pairs.gain import LEAST_GAIN
from gpurun.records.failure import FailureKind
from gpurun.records.tuning import GuardVerdict
from gpurun.tuner import knob_calls
from gpurun.tuner.guard.guard_verdict import shows_other_samples
from gpurun.tuner.knob_calls import KnobRaised
from gpurun.tuner.script_facts import facts_under
from gpurun.tuner.search.screening import (
    Screening,
    SearchState,
    companion_rows,
    compared,
    gain_over,
    gains,
    ladder_row,
    not_applied,
    seems_to_gain,
    strongest_effect,
)
from gpurun.tuner.search.worth_a_trial import not_worth_a_trial
from gpurun.tuner.tuning_trial import Trial


@dataclass(frozen=True)
class CombinedChange:
    """One likely change of a set, and the settings of other knobs that go with it."""

    knob: Knob
    value: Any
    companions: dict[str, Any]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the change, its companions included."""
        return {self.knob.name: self.value, **self.companions}


def likely_changes(knobs: Sequence[Knob], state: SearchState) -> list[CombinedChange]:
    """The first value of each knob that is likely to gain, each on the ground of those before."""
    facts = state.facts
    found: list[CombinedChange] = []
    for knob in knobs:
        if (
            knob.name in facts.current
            or not_worth_a_trial(knob, facts)
            or not knob_calls.is_likely(knob, facts)
        ):
            continue
        values = knob_calls.candidates(knob, facts)
        if isinstance(values, Skip) or not values:
            continue
        try:
            companions = knob_calls.companions(knob, facts, values[0])
        except KnobRaised:
            continue  # it says so when it is tried by itself
        companions = {k: v for k, v in companions.items() if k not in facts.current}
        found.append(CombinedChange(knob, values[0], companions))
        facts = facts_under(facts, {**facts.current, **found[-1].settings}, facts.result)
    return found


class CombinedTrial:
    """Tries sets of changes, then measures what each change is worth.

    `settled`: the values of knobs that a set has measured; they need no trial of their own.
    `companions`: the names of knobs that were set for the sake of another. `slower`: the names of
    the knobs of a set that was slower.
    """

    def __init__(self, screening: Screening, knobs: Sequence[Knob], state: SearchState) -> None:
        self.settled: dict[str, Any] = {}
        self.companions: set[str] = set()
        self.slower: set[str] = set()
        self._knobs = {knob.name: knob for knob in knobs}
        self._screening = screening
        self._before = (dict(state.settings), state.best)
        self._adopted: list[CombinedChange] = []
        self._halved = False
        """True once the doubtful numerics of a set of no use were left out."""

    def try_set(self, members: Sequence[CombinedChange], state: SearchState) -> bool:
        """Launch them at once and adopt them if they gain; False: to be tried one by one."""
        group = list(members)
        while len(group) > 1 and not self._screening.exhausted(state):
            if (slow := self._too_slow(group, state)) is not None:
                group.remove(slow)
                continue
            said = ", ".join(f"{name} {value}" for m in group for name, value in m.settings.items())
            self._screening.note(f"all at once: {said}")
            trial = self._launch(group, state)
            culprit = _culprit(group, trial)
            if culprit is not None:
                self._drop(culprit, trial, trial.record.reason, state)
                group.remove(culprit)
                continue
            if trial.throughput is not None and not trial.late:
                left_over = self._drop_idle(group, trial, state)
                if not group:
                    break
                if left_over:
                    continue  # what went with it acted all the same
            effect = strongest_effect(m.knob.effect for m in group)
            reason, guard = self._screening.objection(effect, trial, state)
            if reason is None:
                if self._adopt(group, trial, guard, state):
                    return True
                group = _safe(group) if _is_slower(trial, state) else []
                continue
            if not trial.late:
                self._screening.note(f"not all at once: {reason}")
            group = self._safer(group, trial, guard, state)
        return False

    def _too_slow(
        self, group: Sequence[CombinedChange], state: SearchState
    ) -> CombinedChange | None:
        """The member that takes too long to start for what is left of the budget; it is noted."""
        slow = self._slowest_start(group, state)
        why = None if slow is None else self._screening.too_slow(slow.knob, state)
        if slow is not None and why is not None:
            self._screening.note(f"{slow.knob.name}: not among all at once: {why}")
            return slow
        return None

    def _slowest_start(
        self, group: Sequence[CombinedChange], state: SearchState
    ) -> CombinedChange | None:
        """The member that is slowest to start, if it is compiled."""
        slowest = self._screening.slowest([m.knob for m in group], state)
        if not self._screening.is_slow(slowest, state):
            return None
        return next(m for m in group if m.knob is slowest)

    def _safer(
        self,
        group: Sequence[CombinedChange],
        trial: Trial,
        guard: GuardVerdict | None,
        state: SearchState,
    ) -> list[CombinedChange]:
        """The members to try next if a set is of no use.

        If other samples reach the model, what may hand them out otherwise goes. If not, first the
        one that starts slowly goes, for it is the likeliest to fail; then the more doubtful half of
        those that change numerics; then all of these. In the end none is left.
        """
        if guard is not None and shows_other_samples(guard):
            others = [m for m in group if not m.knob.reorders_samples]
            if len(others) < len(group):
                return others
        slow = self._slowest_start(group, state)
        if slow is not None:
            if trial.late:
                self._drop(slow, trial, trial.record.reason, state)
            return [m for m in group if m is not slow]
        if not self._halved:
            self._halved = True
            return _without_doubtful(group)
        return _safe(group)

    def leave_one_out(self, state: SearchState) -> None:
        """Drop the changes by which the set gains nothing, the last first.

        Only changes of numerics are left out: a pipeline change seldom costs time, and what each
        is worth is measured after the proof.
        """
        adopted = [m for m in self._adopted if state.settings.get(m.knob.name) == m.value]
        doubtful = [m for m in adopted if m.knob.effect is not Effect.PIPELINE]
        for member in sorted(doubtful, key=lambda m: -m.knob.order):
            rest = {k: v for k, v in state.settings.items() if k not in member.settings}
            before, measured = self._before
            if rest == before:
                self._learn(member, rest, measured, state)
                continue
            if self._screening.exhausted(state):
                break
            why = self._screening.too_slow_without(member.knob, state)
            if why is not None:
                self._screening.note(f"{member.knob.name}: not tried without it: {why}")
                continue
            trial = self._screening.launch(rest, [member.knob], state)
            effect = strongest_effect(
                self._knobs[name].effect for name in rest if name in self._knobs
            )
            reason, _ = self._screening.objection(effect, trial, state)
            if reason is None:
                self._learn(member, rest, trial, state)
            else:
                self._screening.note(f"{member.knob.name}: kept, for without it: {reason}")

    def _launch(self, group: Sequence[CombinedChange], state: SearchState) -> Trial:
        settings = dict(state.settings)
        for member in group:
            settings |= member.settings
        return self._screening.launch(settings, [m.knob for m in group], state)

    def _adopt(
        self,
        group: list[CombinedChange],
        trial: Trial,
        guard: GuardVerdict | None,
        state: SearchState,
    ) -> bool:
        """Keep the set if it gains."""
        if not gains(trial, state.best):
            seen = compared(trial, state.best)
            kind = "uncertain" if seems_to_gain(trial, state.best) else "no gain"
            self._screening.note(f"all at once: {kind}: {seen}")
            if _is_slower(trial, state):
                self.slower |= {member.knob.name for member in group}
            keep = partial(self._keep, group, trial, guard, state)
            self._screening.remember_unsure(trial, state.best, keep)
            return False
        self._keep(group, trial, guard, state)
        return True

    def _keep(
        self,
        group: list[CombinedChange],
        trial: Trial,
        guard: GuardVerdict | None,
        state: SearchState,
    ) -> None:
        """Keep the members; their rows replace those of their own trials."""
        settings, seen = dict(state.settings), compared(trial, state.best)
        turned = [change for member in group for change in member.settings.items()]
        state.ladder[:] = [row for row in state.ladder if (row.knob, row.value) not in turned]
        for member in group:
            settings |= member.settings
            self.settled[member.knob.name] = member.value
            self.companions |= member.companions.keys()
            self._adopted.append(member)
            row = ladder_row(member.knob, member.value, trial, guard=guard, kept=True)
            state.ladder += [row, *companion_rows(row, member.companions)]
        state.move(settings, trial)
        self._screening.note(f"all at once: kept: {seen}")

    def _drop_idle(self, group: list[CombinedChange], trial: Trial, state: SearchState) -> set[str]:
        """Drop the members that did nothing in the trial, whatever becomes of the set.

        What went with them acted all the same. If it is likely to gain by itself it becomes a
        member; the names of the others, for whose sake alone it was set, are returned.
        """
        left_over: set[str] = set()
        unseen = list(group)
        while unseen:
            member = unseen.pop(0)
            reason = not_applied(member.knob, trial, state.facts.argv)
            if reason is None:
                continue
            self._drop(member, trial, reason, state)
            group.remove(member)
            joining = self._likely_companions(member, state)
            group += joining
            unseen += joining
            stay = {name for own in joining for name in own.settings}
            left_over |= member.companions.keys() - stay
        return left_over

    def _likely_companions(
        self, member: CombinedChange, state: SearchState
    ) -> list[CombinedChange]:
        """What goes with a change and is likely to gain by itself, with the same values."""
        names = member.companions.keys() & self._knobs.keys() - self.settled.keys()
        likely = likely_changes([self._knobs[name] for name in sorted(names)], state)
        return [own for own in likely if own.settings.items() <= member.companions.items()]

    def _drop(self, member: CombinedChange, trial: Trial, reason: str, state: SearchState) -> None:
        self.settled[member.knob.name] = member.value
        row = ladder_row(member.knob, member.value, trial, guard=None, reason=reason)
        state.ladder.append(row)

    def _learn(
        self, member: CombinedChange, rest: dict[str, Any], without: Trial, state: SearchState
    ) -> None:
        """Drop a change from the set if the set gains nothing by it."""
        seen = f"{compared(state.best, without)} without it"
        if gain_over(state.best, without) >= LEAST_GAIN:
            self._screening.note(f"{member.knob.name}: stays in the set: {seen}")
            return
        for number, row in enumerate(state.ladder):
            if row.kept and row.knob == member.knob.name:
                state.ladder[number] = replace(row, kept=False, reason=f"no gain: {seen}")
            elif row.kept and row.knob in member.companions:
                state.ladder[number] = replace(row, kept=False)
        self._screening.note(f"{member.knob.name}: dropped from the set: {seen}")
        state.move(rest, without)


def _is_slower(trial: Trial, state: SearchState) -> bool:
    return gain_over(trial, state.best) < 1 / LEAST_GAIN


def _safe(group: Sequence[CombinedChange]) -> list[CombinedChange]:
    """Those that only feed the model: they seldom cost time. None if that is all of them."""
    return _without(_numerics(group), group)


def _without_doubtful(group: Sequence[CombinedChange]) -> list[CombinedChange]:
    """Without the more doubtful half of those that change numerics."""
    numerics = _numerics(group)
    return _without(numerics[len(numerics) // 2 :], group)


def _numerics(group: Sequence[CombinedChange]) -> list[CombinedChange]:
    """Those that do more than feed the model, the most doubtful last."""
    found = [m for m in group if m.knob.effect is not Effect.PIPELINE]
    return sorted(found, key=lambda m: m.knob.order)


def _without(
    members: Sequence[CombinedChange], group: Sequence[CombinedChange]
) -> list[CombinedChange]:
    """The group without these members; none of it if there are no such members."""
    return [m for m in group if m not in members] if members else []


def _culprit(group: Sequence[CombinedChange], trial: Trial) -> CombinedChange | None:
    """The member that made the trial fail."""
    failure = trial.failure
    if failure is None or failure.kind is not FailureKind.KNOB_FAILED:
        return None
    return next((member for member in group if member.knob.name == failure.knob), None)
