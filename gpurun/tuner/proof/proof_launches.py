"""Launches the pairs of a proof, and those that show each change's share."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpurun.arguments.options import Objective
from gpurun.pairs.engine import NotLive, Pair, PairEngine, PairOutcome, ToldOnce
from gpurun.pairs.obstacle import MemoryPeaks, live_pair_obstacle
from gpurun.records.bench.metrics import Metric
from gpurun.records.facts import Facts
from gpurun.records.spec import StopRule
from gpurun.records.tuning import PAIR_SIDES, LadderRow, TrialPurpose
from gpurun.tuner.proof.paired_proof import Finalist, PairResult, prove
from gpurun.tuner.time_budget import TimeBudget
from gpurun.tuner.trial_length import patience
from gpurun.tuner.trial_series import TrialSeries
from gpurun.tuner.tuning_findings import TuningEnded, TuningFindings
from gpurun.tuner.tuning_trial import Trial, TrialRequest
from gpurun.tuner.tuning_view import TuningView

METRICS = {
    Objective.THROUGHPUT: Metric.THROUGHPUT,
    Objective.MEMORY: Metric.PEAK_MEMORY,
    Objective.ENERGY: Metric.ENERGY,
}
LATE_SHARE = 0.25
"""SPEC: a pair that has begun may take this part of the budget more."""
SHARES_OF_BUDGET = 0.15
"""The shares may take this part of the budget: the training is waiting."""

Settings = Mapping[str, Any]
Companions = Callable[[LadderRow], Sequence[str]]
TakeShare = Callable[[Settings, Settings], PairResult]
"""(settings without the change, chosen settings) → their pair, which must be live; `NotLive`."""


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
    rule: Callable[[Settings], StopRule]

    def __post_init__(self) -> None:
        self._told = ToldOnce(self._decide)
        self._engine = PairEngine(
            self._beside,
            self._alone,
            self._told,
            late=lambda: self._no_room(self._engine.seconds),
            obstacle=lambda first, second: self._obstacle_of(first.settings, second.settings),
        )

    def prove(self, finalists: list[Finalist], best: Trial) -> Finalist:
        """Run the rounds; the baseline's side of them. `best`: a trial of the first finalist."""
        base = self.findings.base
        baseline = self.findings.baseline = Finalist("baseline", base)
        for finalist in finalists:
            finalist.metric = METRICS[self.objective]

        def take(settings: Settings, number: int) -> PairResult:
            return self._pair((base, settings), number, PAIR_SIDES)

        def update(line: str) -> None:
            self.view.proof_update(line)
            if any(finalist.look().proven for finalist in finalists):
                self.findings.proof_seconds = self.findings.proof_seconds or self.timetable.spent

        prove(baseline, finalists, take, self._no_room, update)
        if baseline.failure is not None:
            if not any(one.settled or one.look().proven for one in finalists):
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

        def take(without: Settings, chosen: Settings) -> PairResult:
            self.view.note("a pair with and without one change measures its share of the gain")
            purposes = (TrialPurpose.SHARE, TrialPurpose.SHARE)
            return self._pair((without, chosen), next(numbers), purposes, live_only=True)

        why = measure_shares(
            found.ladder,
            found.chosen.settings,
            companions,
            take,
            lambda seconds: self.timetable.left - end > seconds,
            self.timetable.pair_seconds,
        )
        if why:
            self._decide(f"shares of single changes: not all measured: {why}")

    def obstacle(self, base: Settings, facts: Facts, finalists: Sequence[Settings]) -> str:
        """Reason why these finalists cannot be measured live beside the baseline, or ""."""
        if self.trials.in_turn_only:
            return self.trials.in_turn_only
        if self.objective is not Objective.THROUGHPUT:
            return f"turns do not measure {self.objective.value}"
        alone = [trial for trial in self.trials.trials if not trial.in_turns]
        if any(trial.status == "completed" for trial in alone):
            return "the script is over before a live pair could be measured"
        peaks = [self._peaks(settings) for settings in finalists]
        largest = MemoryPeaks(
            max((one.host for one in peaks), default=0),
            max((one.reserved for one in peaks), default=0),
        )
        gpu = None if facts.device == "cpu" else facts.machine.gpu_memory_bytes
        return live_pair_obstacle([facts.result], (self._peaks(base), largest), gpu)

    def _obstacle_of(self, base: Settings, settings: Settings) -> str:
        facts = self.findings.facts
        if facts is None:
            return "nothing is known of the script"
        return self.obstacle(base, facts, [settings])

    def _peaks(self, settings: Settings) -> MemoryPeaks:
        """The largest peaks that trials with these settings had; 0 if there was none."""
        trials = [t for t in self.trials.trials if t.knobs == dict(settings)]
        return MemoryPeaks(
            max((t.peak_host_bytes or 0 for t in trials), default=0),
            max((t.peak_reserved_bytes or 0 for t in trials), default=0),
        )

    # -- one pair ------------------------------------------------------------------------------

    def _pair(
        self,
        both: tuple[Settings, Settings],
        number: int,
        purposes: tuple[TrialPurpose, TrialPurpose],
        live_only: bool = False,
    ) -> PairResult:
        """A pair; what was searched last is launched first in the first one, for a process may be
        waiting with it."""
        turned = number % 2 == 0
        one, other = both[::-1] if turned else both
        coming = [(other, other, one), (other, one, one)]  # the next pair has the reverse order
        first, second = (
            self._request(purpose, settings, number, after)
            for purpose, settings, after in zip(
                purposes, both, coming[::-1] if turned else coming, strict=True
            )
        )
        pair = self._engine.take(first, second, number + 1, turned=turned, live_only=live_only)
        if pair.in_turn:
            self._told(f"launches one after the other, not live pairs: {pair.in_turn}")
        self.timetable.pair_seconds = seconds = self._engine.seconds
        error = None if pair.ratio is None else pair.ratio.error
        return PairResult(pair.first, pair.second, gain_of(pair), seconds, error)

    def _request(
        self, purpose: TrialPurpose, settings: Settings, number: int, coming: Sequence[Settings]
    ) -> TrialRequest:
        """One side of a pair. A pair that has begun is measured to its end: half of one is none."""
        return TrialRequest(
            purpose,
            settings,
            self.rule(settings),
            seed_offset=number,
            hurry_at=self.timetable.deadline,
            deadline=self.timetable.deadline + LATE_SHARE * self.timetable.budget,
            patience_seconds=patience(self.timetable.budget, self.timetable.longest),
            following=coming,
        )

    def _beside(self, first: TrialRequest, second: TrialRequest) -> PairOutcome[Trial]:
        both = self.trials.run_pair((first, second))
        for trial in (both.first, both.second):
            if trial is not None:
                self.view.trial_finished(trial.record)
        return both

    def _alone(self, request: TrialRequest) -> Trial:
        return self.launch(request)

    def _no_room(self, seconds: float) -> bool:
        return self.timetable.left < seconds

    def _decide(self, line: str) -> None:
        self.findings.decisions.append(line)
        self.view.note(line)


def gain_of(pair: Pair[Trial]) -> float | None:
    """The factor by which the second side's score is better, by turns where they measure it; None
    where a side has none."""
    first, second = pair.first, pair.second
    if not first.score or not second.score:
        return None
    if pair.ratio is None:
        return second.score / first.score
    steps = min(first.counted_steps, second.counted_steps)
    return math.exp(-pair.ratio.log) * second.samples_a_step(steps) / first.samples_a_step(steps)


def measure_shares(
    rows: list[LadderRow],
    chosen: Settings,
    companions: Companions,
    take: TakeShare,
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
        try:
            pair = take(rest, chosen)
        except NotLive as obstacle:
            return str(obstacle)
        if pair.gain is None:
            return "a side's score was not measured"
        seconds = pair.seconds
        rows[number] = replace(row, speedup=pair.gain)
    return ""
