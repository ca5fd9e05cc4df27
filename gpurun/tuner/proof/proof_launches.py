"""Launches the rounds of a proof, live or in turn, and the pairs that show each change's share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpurun.arguments.options import Objective
from gpurun.records.spec import StopRule
from gpurun.records.tuning import PAIR_SIDES, LadderRow, TrialPurpose
from gpurun.tuner.proof.live_proof import LiveProof
from gpurun.tuner.proof.paired_proof import Finalist, PairResult, prove
from gpurun.tuner.time_budget import TimeBudget
from gpurun.tuner.trial_length import patience
from gpurun.tuner.trial_series import TrialSeries
from gpurun.tuner.tuning_findings import TuningEnded, TuningFindings
from gpurun.tuner.tuning_trial import Trial, TrialRequest
from gpurun.tuner.tuning_view import TuningView

LATE_SHARE, LATE_SECONDS = 0.25, 60.0
"""A live pair may run longer than expected by this part of the budget, and by so much at most,
whatever is left: nothing can be said of it before it has had its fewest rounds."""

Companions = Callable[[LadderRow], Sequence[str]]


@dataclass
class ProofLaunches:
    """Launches what `FinalSelection` asks for. `rule(settings)`: how long a launch is.

    `launch` runs a single one.
    """

    findings: TuningFindings
    trials: TrialSeries
    view: TuningView
    timetable: TimeBudget
    objective: Objective
    launch: Callable[[TrialRequest], Trial]
    rule: Callable[[Mapping[str, Any]], StopRule]
    _round_seconds: float = field(init=False, default=0.0)
    """Expected seconds of a round."""

    def prove(self, finalists: list[Finalist], best: Trial) -> Finalist:
        """Run the rounds; the baseline's side of them. `best`: a trial of the first finalist."""
        baseline = self.findings.baseline = Finalist("baseline", self.findings.base)
        if not finalists:
            return baseline
        live = self._live(finalists)

        def update(line: str) -> None:
            self.view.proof_update(line)
            if any(finalist.look().significant for finalist in finalists):
                self.findings.proof_seconds = self.findings.proof_seconds or self.timetable.spent

        self.timetable.live = live is not None
        self._round_seconds = self.timetable.round_of(best)
        seconds = self._round_seconds / 2
        prove(baseline, finalists, self._launch_side, self._no_room, update, seconds, live)
        for note in () if live is None else live.notes:
            self._decide(note)
        if baseline.failure is not None:
            if not any(finalist.look().settled for finalist in finalists):
                raise TuningEnded(
                    "script_failed", f"the script as it is failed: {baseline.failure}"
                )
            why = f"the proof ended early, the script as it is failed: {baseline.failure}"
            self.findings.reason = why
            self._decide(why)
        return baseline

    def shares(self, best: Trial, companions: Companions) -> None:
        """Measure what each chosen change is worth, in the rest of the budget."""
        found = self.findings
        if found.verdict != "faster" or found.chosen is None or not found.chosen.live:
            return
        if not found.chosen.settled:  # a further pair of the proof found no room either
            self._decide("shares of single changes: not measured: the proof took all of the budget")
            return
        if self.objective is not Objective.THROUGHPUT:
            return
        end = self.timetable.left - min(
            self.timetable.left, SHARES_OF_BUDGET * self.timetable.budget
        )

        numbers = itertools.count()

        def pair(without: Mapping[str, Any], chosen: Mapping[str, Any]) -> PairResult:
            self.view.note("a pair with and without one change measures its share of the gain")
            return self.pairs_against(without, (TrialPurpose.SHARE, TrialPurpose.SHARE))(
                chosen, next(numbers)
            )

        why = measure_shares(
            found.ladder,
            found.chosen.settings,
            companions,
            pair,
            lambda seconds: self.timetable.left - end > seconds,
            self.timetable.round_of(best),
        )
        if why:
            self._decide(f"shares of single changes: not all measured: {why}")

    def _launch_side(
        self,
        purpose: TrialPurpose,
        settings: Mapping[str, Any],
        number: int,
        following: Sequence[Mapping[str, Any]],
    ) -> Trial:
        rule = self.rule(settings)
        request = TrialRequest(purpose, settings, rule, seed_offset=number, following=following)
        return self.launch(request)

    def _live(self, finalists: Sequence[Finalist]) -> LiveProof | None:
        """Measures live pairs; None, with the reason noted, where launches take turns."""
        facts = self.findings.facts
        if facts is None:
            return None
        live = self.pairs_against(self.findings.base)
        why = live.obstacle(facts, [finalist.settings for finalist in finalists])
        if why:
            self._decide(f"the proof launches one side after the other: {why}")
            return None
        return live

    def pairs_against(
        self,
        base: Mapping[str, Any],
        purposes: tuple[TrialPurpose, TrialPurpose] = PAIR_SIDES,
    ) -> LiveProof:
        """Measures live pairs with these settings on the one side."""
        finished, request = self.view.trial_finished, self._live_request
        return LiveProof(self.trials, base, self.objective, request, finished, purposes)

    def _live_request(
        self, purpose: TrialPurpose, settings: Mapping[str, Any], number: int
    ) -> TrialRequest:
        """One side of a pair. A pair that has begun is measured to its end: half of one is none."""
        late = min(LATE_SECONDS, LATE_SHARE * self.timetable.budget)
        limit = max(self.timetable.left, self._round_seconds + late)
        return TrialRequest(
            purpose,
            settings,
            self.rule(settings),
            seed_offset=number,
            limit_seconds=limit,
            hurry_seconds=max(0.0, self.timetable.left),
            patience_seconds=patience(self.timetable.budget, self.timetable.longest),
        )

    def _no_room(self, seconds: float) -> bool:
        return self.timetable.left < seconds

    def _decide(self, line: str) -> None:
        self.findings.decisions.append(line)
        self.view.note(line)


SHARES_OF_BUDGET = 0.15
"""The shares may take this part of the budget: the training is waiting."""

Pair = Callable[[Mapping[str, Any], Mapping[str, Any]], PairResult]
"""(settings without the change, chosen settings) → their live pair."""


def measure_shares(
    rows: list[LadderRow],
    chosen: Mapping[str, Any],
    companions: Callable[[LadderRow], Sequence[str]],
    pair: Pair,
    room: Callable[[float], bool],
    seconds: float,
) -> str:
    """Write into each row what its change is worth, numerics first, as long as there is room.

    `companions(row)`: names of the settings that go with its change. `room(seconds)`: whether there
    is time for so much. `seconds`: what a pair is expected to take. Why it ended, "" at its end.
    """
    followers = {name for row in rows if row.kept for name in companions(row)}
    own = [n for n, row in enumerate(rows) if row.kept and row.knob not in followers]
    for number in sorted(own, key=lambda n: rows[n].effect == "pipeline"):
        row = rows[number]
        rest = {k: v for k, v in chosen.items() if k not in (row.knob, *companions(row))}
        if not room(seconds):
            return "the budget ended first"
        outcome = pair(rest, chosen)
        if outcome.gain is None:
            return outcome.failure
        seconds = outcome.seconds
        rows[number] = replace(row, speedup=outcome.gain)
    return ""
