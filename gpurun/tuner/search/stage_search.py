"""The search: the likely changes of all stages at once, and refinements one at a time on top.

A launch is expensive, and nearly all of it is start-up. So one trial takes every change that is
likely to gain. Only where it fails, loses or trains otherwise is the set split: by stages in the
ladder's order, then by changes, each part on top of what was kept before it. What was dropped for
its speed alone rejoins once the ground has changed: bfloat16 can lose while the launches are many.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from gpurun.knobs import is_users
from gpurun.knobs.api import Effect, Knob, Skip
from gpurun.knobs.stages import COMPILE, DATA, STAGES, in_order, stage_of
from gpurun.records.facts import Facts
from gpurun.records.failure import FailureKind
from gpurun.same.verdict import incomparable
from gpurun.trials import knob_calls
from gpurun.trials.knob_calls import KnobRaised
from gpurun.tuner.loader_trials import worker_rates_of, worker_rates_sentence
from gpurun.tuner.search.changes import (
    Change,
    change_of,
    likely_changes,
    proposals,
    settings_of,
)
from gpurun.tuner.search.search_state import (
    SearchState,
    compared,
    gain_over,
    gains,
    loses,
    no_gain,
    seems_to_gain,
)
from gpurun.tuner.search.search_trials import SearchTrials, not_applied
from gpurun.tuner.tuning_trial import Trial

WAITS_STILL = 0.05
"""SPEC: the data stage is visited again if the best trial waits for data for more of its step."""
ASKED_FOR = 0
"""The `order` of what the user asked for by name."""
BETTER = "a better value was found"


class StageSearch:
    """`trials` launches; `allowed`: the effects among which `run` looks."""

    def __init__(self, trials: SearchTrials, allowed: frozenset[Effect]) -> None:
        self._trials, self._note, self._allowed = trials, trials.note, allowed
        self._slow: list[tuple[Change, Trial]] = []
        """Changes that were dropped for their speed alone, with the best trial of that moment."""
        self._unsure: tuple[float, list[Change], Trial, frozenset[str]] | None = None
        self._companions: set[str] = set()
        """Names of the knobs that are set for the sake of another."""
        self._at_first: Trial | None = None
        """The best trial before anything was tried."""

    def run(
        self,
        knobs: Sequence[Knob],
        state: SearchState,
        pressing: Callable[[Trial], Collection[str]],
    ) -> None:
        """Keep what gains. `pressing(trial)`: names of the knobs that answer a finding of it."""
        self._trials.know(knobs)
        allowed = self._allowed_knobs(knobs, state)
        self._at_first = state.best
        likely = likely_changes(allowed, state.facts)
        self._adopt(sorted(likely, key=lambda change: list(STAGES).index(change.stage)), state)
        self._rejoin(state)
        self._refine(allowed, state, pressing(state.best))
        self._visit_data_again(allowed, state)
        if self._trials.untried:
            why = self._trials.end() or "they would take longer than the search may"
            self._note(f"not tried: {why}: {', '.join(self._trials.untried)}")
        if self._unsure is not None and not self._gained(state):
            gain, changes, trial, idle = self._unsure
            self._note(f"the best gain is uncertain (×{gain:.2f}): the proof measures it")
            self._keep(changes, trial, state, idle)

    def _allowed_knobs(self, knobs: Sequence[Knob], state: SearchState) -> list[Knob]:
        """Those whose changes may be made and can be judged; the reason is noted of the rest."""
        unseen = incomparable(state.judge.baselines)
        found = []
        for knob in knobs:
            if knob.effect not in self._allowed:
                self._note(f"{knob.name}: not tried ({knob.effect.value} changes not allowed)")
            elif unseen is not None and knob.effect is Effect.NUMERICS:
                self._note(f"{knob.name}: not tried: outputs not compared: {unseen}")
            else:
                found.append(knob)
        return found

    def _measure_workers(self, knobs: Sequence[Knob], state: SearchState) -> None:
        """Have the numbers of loader workers measured once, if one of the knobs sets it."""
        knob = next((knob for knob in knobs if knob.name == "loader_workers"), None)
        if knob is None or state.facts.worker_rates is not None:
            return
        if not self._trials.room([], state):
            return
        found = worker_rates_of(knob, state.facts, self._trials.rule, self._trials.measure)
        if not isinstance(found, Skip):
            state.facts = replace(state.facts, worker_rates=found)
            self._note(worker_rates_sentence(found))

    # -- sets of changes -----------------------------------------------------------------------

    def _adopt(
        self, changes: Sequence[Change], state: SearchState, start: Trial | None = None
    ) -> Trial | None:
        """Keep as many of these changes as gain together and train the same.

        Their trial; None if there was no room for it. `start`: the trial over which they must gain,
        if it is not the best one, to which they are then no more than preferred.
        """
        group, trial = self._tried(changes, state)
        if trial is None:
            return None
        start = start or state.best
        if (culprit := _culprit(group, trial)) is not None:
            state.drop(culprit, trial, trial.record.reason)
            self._adopt([change for change in group if change is not culprit], state)
            return trial
        tried, group = group, _without_idle(group, trial, state)
        if not group:
            return trial
        idle = frozenset(change.knob.name for change in tried if change not in group)
        reason, verdict = self._trials.objection(trial, state)
        if reason is None and gains(trial, start) and gain_over(trial, state.best) > 1.0:
            self._note(f"kept {texts(group)}: {compared(trial, state.best)}")
            self._keep(group, trial, state, idle)
            return trial
        why = reason or (BETTER if gains(trial, start) else no_gain(trial, start))
        parts = _parts(group, to_single=reason is not None or loses(trial, state.best))
        if reason is None:
            self._remember_unsure(group, trial, state, idle)
        if parts:
            self._note(f"not together: {why}")
        for part in parts:
            self._adopt([*self._rejoining(part, state), *part], state)
        names = {change.knob.name for change in group}
        if not parts or names <= set(self._trials.untried):
            told = f"together: {why}" if parts else why
            for change in group:
                state.drop(change, trial, told, verdict, start)
            self._slow += [(change, state.best) for change in group if reason is None]
        return trial

    def _tried(
        self, changes: Sequence[Change], state: SearchState
    ) -> tuple[list[Change], Trial | None]:
        """As many of these changes as there is room for, with their trial, which may be known."""
        group = list(changes)
        known = self._trials.of({**state.settings, **settings_of(group)})
        if known is None:
            group = self._with_room(group, state)
            known = self._trials.of({**state.settings, **settings_of(group)})
        if known is None and group:
            self._note(f"trying {texts(group)}")
            known = self._trials.launch(group, state)
        return group, known if group else None

    def _with_room(self, group: list[Change], state: SearchState) -> list[Change]:
        """Those for which there is room: without what is compiled there may be more."""
        if not self._trials.room(group, state):
            slow = [change for change in group if change.stage == COMPILE]
            self._trials.lack(slow)
            group = [change for change in group if change not in slow]
        if self._trials.room(group, state):
            return group
        self._trials.lack(group)
        return []

    def _keep(
        self,
        changes: Sequence[Change],
        trial: Trial,
        state: SearchState,
        idle: Collection[str] = (),
    ) -> None:
        """Stand on what a trial measured, without the knobs that were `idle` in it."""
        self._companions |= {name for change in changes for name in change.companions}
        kept = {name: value for name, value in trial.record.knobs.items() if name not in idle}
        state.move(kept, trial)

    def _rejoining(self, part: Sequence[Change], state: SearchState) -> list[Change]:
        """What was dropped for its speed and may gain beside this part, which is compiled."""
        again = [change for change, _ in self._slow]
        settings = {**state.settings, **settings_of([*again, *part])}
        if all(change.stage != COMPILE for change in part) or self._trials.of(settings):
            return []
        self._slow = []
        return again

    def _rejoin(self, state: SearchState) -> None:
        """Try what was dropped for its speed once more where something else was kept since."""
        while again := [change for change, ground in self._slow if ground is not state.best]:
            self._slow = [one for one in self._slow if one[1] is state.best]
            self._adopt([c for c in again if c.knob.name not in state.settings], state)

    def _remember_unsure(
        self, group: Sequence[Change], trial: Trial, state: SearchState, idle: frozenset[str]
    ) -> None:
        """What may gain goes to the proof if nothing surer is found."""
        gain = gain_over(trial, state.best)
        best = self._unsure[0] if self._unsure is not None else 0.0
        if seems_to_gain(trial, state.best) and gain > best:
            self._unsure = (gain, list(group), trial, idle)

    # -- one at a time -------------------------------------------------------------------------

    def _refine(
        self, knobs: Sequence[Knob], state: SearchState, pressing: Collection[str] = ()
    ) -> None:
        """Further values of what was tried, and what answers a finding; if nothing gains, all."""
        unasked = []
        for knob in sorted(knobs, key=lambda knob: knob.name not in state.settings):
            values = self._open_values(knob, state)
            if isinstance(values, Skip):
                self._note(f"{knob.name}: not tried: {values.reason}")
                continue
            asked = knob.order == ASKED_FOR or is_users(knob) or knob.name in pressing
            if self._gained(state) and not asked and not self._trials.tried(knob.name):
                unasked += [knob.name] if values else []
                continue
            self.try_knob(knob, values, state)
            self._rejoin(state)
        if unasked:
            self._note(f"not tried, nothing that was found points to them: {', '.join(unasked)}")

    def _visit_data_again(self, knobs: Sequence[Knob], state: SearchState) -> None:
        """Once more the data stage, where loading is what is left to be hidden."""
        result = state.best.result
        step = None if result is None else result.step_time_ms
        wait = None if result is None or result.split is None else result.split.data_wait_ms
        waits = step is not None and wait is not None and wait > WAITS_STILL * step.mean
        if not waits or not self._gained(state):
            return
        self._measure_workers(knobs, state)
        again = [knob for knob in knobs if stage_of(knob) == DATA]
        for knob in again:
            self._trials.forget(knob.name, state.settings.get(knob.name))
        self._refine(again, state, [knob.name for knob in again])

    def _gained(self, state: SearchState) -> bool:
        """True once something was kept."""
        return state.best is not self._at_first

    def _open_values(self, knob: Knob, state: SearchState) -> list[Any] | Skip:
        """The values of a knob that are still to be tried, or why there are none."""
        present, known = state.settings.get(knob.name), self._trials.tried(knob.name)
        if present is not None and knob.name in self._companions:
            return []
        values = proposals(knob, state.facts)
        if isinstance(values, Skip):
            return values if present is None else []
        return [value for value in values if value not in known and value != present]

    def try_knob(self, knob: Knob, values: Sequence[Any], state: SearchState) -> None:
        """Try these values of one knob, and those by which it refines the best; keep what gains."""
        start, ground, queue = state.best, state.facts, list(values)
        slow, kept = list(self._slow), None
        while queue:
            value = queue.pop(0)
            try:
                change = change_of(knob, value, ground)
            except KnobRaised as raised:
                self._note(f"{knob.name}: {value} not tried: {raised}")
                continue
            if self._trials.of({**state.settings, **change.settings}) is not None:
                continue
            best = state.best
            trial = self._adopt([change], state, start)
            if trial is None or trial.late:
                break
            if state.best is trial:
                if kept is not None:
                    state.drop(kept, best, BETTER, over=start)
                kept = change
                queue = self._refined(change, ground, gain_over(trial, best)) or queue
        self._slow = slow  # a value that lost by itself does not rejoin

    def _refined(self, change: Change, facts: Facts, gain: float) -> list[Any]:
        name = change.knob.name
        try:
            further = knob_calls.refine(change.knob, facts, change.value, gain)
        except KnobRaised as raised:
            self._note(f"{name}: no further value: {raised}")
            return []
        known = self._trials.tried(name)
        return [] if further is None or further in known else [further]


def texts(changes: Sequence[Change]) -> str:
    """ "loader_workers 4, loader_prefetch 8, tf32"."""
    return ", ".join(change.text for change in changes)


def _parts(group: Sequence[Change], *, to_single: bool) -> list[list[Change]]:
    """Both halves of a set: of its stages, in their order, else of its changes.

    None of a set of one stage that merely gains nothing, and of a single change.
    """
    stages = in_order(change.stage for change in group)
    if len(stages) > 1:
        early = stages[: len(stages) // 2]
        return [[c for c in group if (c.stage in early) is first] for first in (True, False)]
    if to_single and len(group) > 1:
        middle = len(group) // 2
        return [list(group[:middle]), list(group[middle:])]
    return []


def _without_idle(group: Sequence[Change], trial: Trial, state: SearchState) -> list[Change]:
    """Those that did something in a trial that was measured; the others are dropped."""
    if trial.throughput is None:
        return list(group)
    found = []
    for change in group:
        reason = not_applied(change.knob, trial, state.facts.argv)
        if reason is None:
            found.append(change)
        else:
            state.drop(change, trial, reason)
    return found


def _culprit(group: Sequence[Change], trial: Trial) -> Change | None:
    """The change that made the trial fail: what was compiled, where compiling took its time."""
    failure = trial.failure
    if failure is None:
        return None
    if failure.kind is FailureKind.COMPILING:
        return next((change for change in group if change.stage == COMPILE), None)
    if failure.kind is not FailureKind.KNOB_FAILED:
        return None
    return next((change for change in group if change.knob.name == failure.knob), None)
