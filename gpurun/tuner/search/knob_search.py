"""The search: all likely changes at once, then the rest one at a time on top, then what each of the
set is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gpurun.knobs.api import Effect, Knob, Skip
from gpurun.records.facts import Facts
from gpurun.records.spec import StopRule
from gpurun.records.tuning import GuardVerdict, LadderRow
from gpurun.tuner import knob_calls
from gpurun.tuner.guard.output_checks import incomparable
from gpurun.tuner.knob_calls import KnobRaised
from gpurun.tuner.search.combined_trial import CombinedTrial, likely_changes
from gpurun.tuner.search.screening import (
    NO_TIME_AFTER_PROOF,
    Launch,
    Note,
    Screening,
    SearchLimits,
    SearchState,
    companion_rows,
    gain_over,
    gains,
    ladder_row,
    no_gain,
    not_applied,
    repaid_too_late,
    startup_difference,
)
from gpurun.tuner.search.worker_numbers import worker_rates_of, worker_rates_sentence
from gpurun.tuner.search.worth_a_trial import not_worth_a_trial
from gpurun.tuner.tuning_trial import Trial

BETTER = "a better value was found"
PASSES = 3
"""A change that gains alters the worth of others, so the rest is gone through again, at most so
often."""


@dataclass(frozen=True)
class KeptValue:
    """A value that gained, the settings that went with it, and the trial that showed it."""

    value: Any
    companions: dict[str, Any]
    trial: Trial


class KnobSearch:
    """Runs the screening trials. Why they ended is said once, however often more are allowed."""

    def __init__(self, launch: Launch, note: Note, rule: StopRule, limits: SearchLimits) -> None:
        self._note = note
        self._rule = rule
        self._allowed = limits.allowed
        self._seen: dict[str, list[Any]] = {}
        """Values by knob that were tried, or had no room."""
        self._numerics: set[str] = set()
        self._said: set[str] = set()
        self.untried: list[str] = []
        """Knobs and values that were not tried because the time or the trials were used up."""
        self._screening = Screening(launch, note, rule, limits)

    @property
    def out_of_time(self) -> bool:
        """True if the search ended because the rest of the budget is for the proof."""
        return self._screening.out_of_time

    def after_proof(self) -> None:
        """Go on after the proof: there is nothing left to be kept for it."""
        self._screening.no_time = NO_TIME_AFTER_PROOF

    def allow_more(self, trials: int) -> None:
        """Let so many further trials be launched, whatever is left of the earlier ones."""
        self._screening.allow_more(trials)

    def run(self, knobs: Sequence[Knob], state: SearchState) -> None:
        """Keep what gains: sets of likely changes as long as there are any, then the rest."""
        self._screening.know(knobs)
        self._numerics = {knob.name for knob in knobs if knob.effect is Effect.NUMERICS}
        at_first = state.best
        open_knobs = []
        unseen = incomparable(state.judge.baselines)
        for knob in knobs:
            if knob.effect not in self._allowed:
                self._note(f"{knob.name}: not tried ({knob.effect.value} changes not allowed)")
            elif unseen is not None and knob.effect is Effect.NUMERICS:
                self._note(f"{knob.name}: not tried: outputs not compared: {unseen}")
            else:
                open_knobs.append(knob)
        if state.facts.device == "cpu":  # beside a GPU the likely changes shorten the step first
            self._measure_workers(open_knobs, state)
        combined = CombinedTrial(self._screening, open_knobs, state)
        while True:
            known = combined.settled.keys() | combined.slower
            likely = [k for k in open_knobs if k.name not in known]
            members = likely_changes(likely, state)
            if len(members) < 2 or not combined.try_set(members, state):
                break
        # first what starts at once: a compiler takes a third of a budget; of that, what never lost
        open_knobs.sort(
            key=lambda knob: (self._screening.is_slow(knob, state), knob.name in combined.slower)
        )
        for _ in range(PASSES):
            before = dict(state.settings)
            if not self._one_by_one(open_knobs, combined, state) or state.settings == before:
                break
        for name in sorted(self._screening.given_up & {knob.name for knob in open_knobs}):
            self._lack_time(name)
        if self.untried and self._screening.end(state) is not None:
            lack = "time" if self.out_of_time else "trials"
            self._note(f"not tried for lack of {lack}: {', '.join(self.untried)}")
        combined.leave_one_out(state)
        unsure = self._screening.unsure
        if unsure is not None and state.best is unsure.over is at_first:
            self._note(f"the best gain is uncertain (×{unsure.gain:.2f}): the proof measures it")
            unsure.keep()

    def _measure_workers(self, knobs: Sequence[Knob], state: SearchState) -> None:
        """Have the numbers of loader workers measured once, if one of the knobs sets it."""
        knob = next((knob for knob in knobs if knob.name == "loader_workers"), None)
        if knob is None or state.facts.worker_rates is not None or self._screening.end(state):
            return
        found = worker_rates_of(knob, state.facts, self._rule, self._screening.launch_for)
        if not isinstance(found, Skip):
            state.facts = replace(state.facts, worker_rates=found)
            self._note(worker_rates_sentence(found))

    def _one_by_one(
        self, knobs: Sequence[Knob], combined: CombinedTrial, state: SearchState
    ) -> bool:
        """Try each knob in turn; what a set has settled only where it asks for another value.

        False when there is no more room.
        """
        self._measure_workers(knobs, state)
        for number, knob in enumerate(knobs):
            values = self._open_values(knob, combined, state)
            if values and not self.try_knob(knob, values, state):
                known = self._seen.keys() | self._screening.given_up
                for rest in (k for k in knobs[number:] if k.name not in known):
                    if self._open_values(rest, combined, state):
                        self._lack_time(rest.name)
                return False
        return True

    def _open_values(self, knob: Knob, combined: CombinedTrial, state: SearchState) -> list[Any]:
        """The values of a knob that are still to be tried; the reason is noted if it has none."""
        if knob.name in combined.companions and knob.name in state.settings:
            return []
        reason = not_worth_a_trial(knob, state.facts)
        proposals = Skip(reason) if reason else knob_calls.candidates(knob, state.facts)
        if knob.name in combined.settled:
            present = state.settings.get(knob.name)
            if present is None or isinstance(proposals, Skip):
                return []
            settled = (present, combined.settled[knob.name])
            proposals = [value for value in proposals[:1] if value not in settled]
        if isinstance(proposals, Skip):
            self._say(f"{knob.name}: not tried: {proposals.reason}")
            return []
        known = self._seen.get(knob.name, ())
        return [value for value in proposals[: knob.most_values] if value not in known]

    def _say(self, line: str) -> None:
        """Note something that may be found again."""
        if line not in self._said:
            self._said.add(line)
            self._note(line)

    def try_knob(self, knob: Knob, values: list[Any], state: SearchState) -> bool:
        """Try these values of one knob, or note why not; False when there is no more room."""
        if knob.name in self._screening.given_up:
            return True  # its row says so
        why = self._screening.end(state)
        if why is not None:
            self._note(f"{knob.name}: not tried: {why}")
            return False
        why = self._screening.too_slow(knob, state)
        if why is not None:
            self._note(f"{knob.name}: not tried: {why}")
            self._lack_time(knob.name)
            return True
        self._note(f"{knob.name}: trying {', '.join(map(str, values))}")
        return self.climb(knob, values, state)

    def _lack_time(self, what: str) -> None:
        if what not in self.untried:
            self.untried.append(what)

    def climb(self, knob: Knob, values: list[Any], state: SearchState) -> bool:
        """Try the values of one knob and refine the best; False when there is no more room."""
        start = state.best
        start_facts = state.facts
        best: KeptValue | None = None
        queue = list(values)
        tried: list[Any] = []
        while queue:
            value = queue.pop(0)
            if value in tried:
                continue
            if self._screening.exhausted(state):
                break
            why = self._screening.too_slow(knob, state)
            if why is not None:
                self._lack_time(f"{knob.name} {value}")
            if knob.name in self._screening.given_up:
                why = "an earlier trial of it was given up"
            if why is not None:
                self._note(f"{knob.name}: {', '.join(map(str, [value, *queue]))} not tried: {why}")
                self._seen.setdefault(knob.name, []).extend([value, *queue])
                break
            tried.append(value)
            self.untried = [x for x in self.untried if x not in (knob.name, f"{knob.name} {value}")]
            self._seen.setdefault(knob.name, []).append(value)
            try:
                companions = knob_calls.companions(knob, start_facts, value)
            except KnobRaised as raised:
                self._note(f"{knob.name}: {value} not tried: {raised}")
                continue
            settings = {**state.settings, knob.name: value, **companions}
            trial = self._screening.launch(settings, [knob], state)
            reason, guard = self._objection(knob, trial, state)
            gain = gain_over(trial, best.trial if best else start)
            reason = reason or repaid_too_late(knob, trial, state.best, state.facts)
            state.ladder.append(_row(knob, value, trial, state.best, reason, guard))
            if reason is None and gain > 1.0:
                best = KeptValue(value, companions, trial)
                queue = self._refined(knob, start_facts, value, gain) or queue
        if best is not None and gains(best.trial, start):
            self._keep(knob, best, state)
        elif best is not None:
            keep = partial(self._keep, knob, best, state)
            self._screening.remember_unsure(best.trial, start, keep)
        return not self._screening.exhausted(state)

    def _objection(
        self, knob: Knob, trial: Trial, state: SearchState
    ) -> tuple[str | None, GuardVerdict | None]:
        skipped = None
        if trial.throughput is not None:
            skipped = not_applied(knob, trial, state.facts.argv)
        if skipped is not None:
            return skipped, None
        return self._screening.objection(knob.effect, trial, state)

    def _refined(self, knob: Knob, facts: Facts, value: Any, gain: float) -> list[Any]:
        try:
            further = knob_calls.refine(knob, facts, value, gain)
        except KnobRaised as raised:
            self._note(f"{knob.name}: no further value: {raised}")
            return []
        return [] if further is None else [further]

    def _keep(self, knob: Knob, best: KeptValue, state: SearchState) -> None:
        value, companions, trial = best.value, best.companions, best.trial
        for number, row in enumerate(state.ladder):
            if row.knob == knob.name and row.value == value:
                state.ladder[number] = kept = replace(row, kept=True, reason="")
            elif row.kept and row.knob in (knob.name, *companions):
                state.ladder[number] = replace(row, kept=False, reason=BETTER)
        state.ladder += companion_rows(kept, companions)
        state.move({**state.settings, knob.name: value, **companions}, trial)
        if self._screening.is_slow(knob, state):  # what lost may gain in compiled code
            for name in self._numerics - {knob.name}:
                self._seen.pop(name, None)
        with_them = "".join(f", with {name} {other}" for name, other in companions.items())
        self._note(f"{knob.name}: kept {value}{with_them}")


def _row(
    knob: Knob,
    value: Any,
    trial: Trial,
    without: Trial,
    reason: str | None,
    guard: GuardVerdict | None,
) -> LadderRow:
    if reason is None:
        reason = BETTER if gains(trial, without) else no_gain(trial, without)
    row = ladder_row(knob, value, trial, guard=guard, reason=reason)
    later, steps = startup_difference(trial, without)
    return replace(row, startup_seconds=later, break_even_steps=steps)
