"""Launches the pairs of a proof, and those that show each change's share."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpurun.arguments.options import Objective
from gpurun.pairs.engine import NotLive, Pair, PairEngine, PairOutcome
from gpurun.pairs.obstacle import MemoryPeaks, live_pair_obstacle
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

LATE_SHARE, LATE_SECONDS = 0.25, 60.0
"""A live pair may run longer than expected by this part of the budget, and by so much at most,
whatever is left: nothing can be said of it before it has had its fewest rounds."""
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
    _round_seconds: float = field(init=False, default=0.0)
    """Expected seconds of a round."""

    def prove(self, finalists: list[Finalist], best: Trial) -> Finalist:
        """Run the rounds; the baseline's side of them. `best`: a trial of the first finalist."""
        base = self.findings.base
        baseline = self.findings.baseline = Finalist("baseline", base)
        if not finalists:
            return baseline
        engine = self._engine(self._obstacle_of(finalists))
        if engine.in_turn:
            self._decide(f"the proof launches one side after the other: {engine.in_turn}")

        def take(settings: Settings, number: int, live_only: bool) -> PairResult:
            live, engine.live_only = not engine.in_turn, live_only
            pair = self._pair(engine, (base, settings), number, PAIR_SIDES)
            if live and pair.in_turn:
                self._decide(f"launches one after the other from here on: {pair.in_turn}")
            return pair

        def update(line: str) -> None:
            self.view.proof_update(line)
            if any(finalist.look().proven for finalist in finalists):
                self.findings.proof_seconds = self.findings.proof_seconds or self.timetable.spent

        self.timetable.live = not engine.in_turn
        self._round_seconds = self.timetable.round_of(best)
        prove(baseline, finalists, take, self._no_room, update, self._round_seconds)
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
        engine, numbers = self._engine(""), itertools.count()
        engine.live_only = True

        def take(without: Settings, chosen: Settings) -> PairResult:
            self.view.note("a pair with and without one change measures its share of the gain")
            purposes = (TrialPurpose.SHARE, TrialPurpose.SHARE)
            return self._pair(engine, (without, chosen), next(numbers), purposes)

        why = measure_shares(
            found.ladder,
            found.chosen.settings,
            companions,
            take,
            lambda seconds: self.timetable.left - end > seconds,
            self.timetable.round_of(best),
        )
        if why:
            self._decide(f"shares of single changes: not all measured: {why}")

    def obstacle(self, base: Settings, facts: Facts, finalists: Sequence[Settings]) -> str:
        """Reason why these finalists cannot be measured live beside the baseline, or ""."""
        if self.trials.in_turn_only:
            return self.trials.in_turn_only
        if self.objective is Objective.ENERGY:
            return "turns are too short for a GPU's counter of joules"
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

    def _obstacle_of(self, finalists: Sequence[Finalist]) -> str:
        facts = self.findings.facts
        if facts is None:
            return "nothing is known of the script"
        return self.obstacle(self.findings.base, facts, [one.settings for one in finalists])

    def _peaks(self, settings: Settings) -> MemoryPeaks:
        """The largest peaks that trials with these settings had; 0 if there was none."""
        trials = [t for t in self.trials.trials if t.knobs == dict(settings)]
        return MemoryPeaks(
            max((t.peak_host_bytes or 0 for t in trials), default=0),
            max((t.peak_reserved_bytes or 0 for t in trials), default=0),
        )

    # -- one pair ------------------------------------------------------------------------------

    def _engine(self, in_turn: str) -> PairEngine[TrialRequest, Trial]:
        return PairEngine(
            self._beside,
            self._alone,
            self._decide,
            lambda: self._no_room(self._round_seconds),
            in_turn,
        )

    def _pair(
        self,
        engine: PairEngine[TrialRequest, Trial],
        both: tuple[Settings, Settings],
        number: int,
        purposes: tuple[TrialPurpose, TrialPurpose],
    ) -> PairResult:
        """A pair; what was searched last is launched first in the first one, for a process may be
        waiting with it."""
        began, turned = time.monotonic(), number % 2 == 0
        one, other = both[::-1] if turned else both
        coming = [(other, other, one), (other, one, one)]  # the next pair has the reverse order
        first, second = (
            self._request(purpose, settings, number, after)
            for purpose, settings, after in zip(
                purposes, both, coming[::-1] if turned else coming, strict=True
            )
        )
        pair = engine.take(first, second, number + 1, turned=turned)
        seconds = time.monotonic() - began
        gain, ratio = gain_of(pair, self.objective), pair.ratio
        if ratio is None:
            return PairResult(pair.first, pair.second, gain, seconds, in_turn=engine.in_turn)
        error = ratio.error if self.objective is Objective.THROUGHPUT else 0.0
        return PairResult(pair.first, pair.second, gain, seconds, error)

    def _request(
        self, purpose: TrialPurpose, settings: Settings, number: int, coming: Sequence[Settings]
    ) -> TrialRequest:
        """One side of a pair. A pair that has begun is measured to its end: half of one is none."""
        late = min(LATE_SECONDS, LATE_SHARE * self.timetable.budget)
        return TrialRequest(
            purpose,
            settings,
            self.rule(settings),
            seed_offset=number,
            limit_seconds=max(self.timetable.left, self._round_seconds + late),
            hurry_seconds=max(0.0, self.timetable.left),
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
        """A launch of one side; the script as it is is launched once more if it fails by itself."""
        trial = self.launch(request)
        if trial.score is None and request.purpose is PAIR_SIDES[0]:
            trial = self.launch(request)
        return trial

    def _no_room(self, seconds: float) -> bool:
        return self.timetable.left < seconds

    def _decide(self, line: str) -> None:
        self.findings.decisions.append(line)
        self.view.note(line)


def gain_of(pair: Pair[Trial], objective: Objective) -> float | None:
    """The factor by which the second side's score is better, by turns where they measure it; None
    where a side has none."""
    first, second = pair.first, pair.second
    if not first.score or not second.score:
        return None
    if pair.ratio is None or objective is not Objective.THROUGHPUT:
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
