"""The proof: pairs of fresh launches of finalist and baseline until a sequential test settles.

The two launches of a pair share a seed. How a pair is launched is the pair engine's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpurun.arguments.options import Objective
from gpurun.pairs.engine import NotLive, Pair, PairEngine, PairOutcome
from gpurun.pairs.estimate import is_loose
from gpurun.pairs.gain import MOST_PAIRS
from gpurun.pairs.obstacle import MemoryPeaks, live_pair_obstacle
from gpurun.records.bench.metrics import Metric
from gpurun.records.spec import StopRule
from gpurun.records.tuning import PAIR_SIDES, TrialPurpose
from gpurun.tuner.phases import Phases
from gpurun.tuner.proof.finalist import Finalist, told
from gpurun.tuner.trial_series import TrialSeries
from gpurun.tuner.tuning_findings import TuningEnded, TuningFindings
from gpurun.tuner.tuning_trial import Trial, TrialRequest
from gpurun.tuner.tuning_view import TuningView

METRICS = {
    Objective.THROUGHPUT: Metric.THROUGHPUT,
    Objective.MEMORY: Metric.PEAK_MEMORY,
    Objective.ENERGY: Metric.ENERGY,
}

ENDED = "the budget ended before the proof was complete"
RUNGS_FIRST = "a gain is proven: its rungs come before a narrower interval"

Settings = Mapping[str, Any]


@dataclass
class ProofLaunches:
    """Launches what `FinalSelection` asks for. `rule(settings)`: how long a launch is.

    `launch` runs a single one. `note` tells each decision once.
    """

    findings: TuningFindings
    trials: TrialSeries
    view: TuningView
    phases: Phases
    objective: Objective
    launch: Callable[[TrialRequest], Trial]
    rule: Callable[[Settings], StopRule]
    note: Callable[[str], None]

    def __post_init__(self) -> None:
        self._engine = PairEngine(
            self._beside,
            lambda request: self.launch(request),
            self.note,
            left=lambda: self.phases.left,
            obstacle=lambda _, second: self.obstacle(second.settings),
            key=lambda request: repr(sorted(request.settings.items())),
        )

    def prove(self, finalist: Finalist, rungs: int = 0) -> Finalist:
        """Run pairs until the finalist is settled or the time is up; the script's side of them.

        A first pair is begun before the end, a later one if there is time for what the last took.
        A proven gain is made more precise only with the time that so many rungs do not need: each
        is a launch beside the script as it is, and takes no longer than a pair. Called again, it
        goes on with the same finalist.
        """
        baseline = finalist.against = finalist.against or Finalist("baseline", self.findings.base)
        finalist.metric = METRICS[self.objective]
        for number in range(len(finalist.pairs), MOST_PAIRS):
            if finalist.done or baseline.failure is not None:
                break
            proven = finalist.look().proven
            if not self._room(self.seconds if number else 0.0, rungs if proven else None):
                self.view.proof_update(RUNGS_FIRST if proven and rungs else ENDED)
                break
            if not self._round(baseline, finalist, number):
                break
        self._check(baseline, finalist)
        return baseline

    @property
    def seconds(self) -> float:
        """What the last pair took; 0 before the first."""
        return self._engine.seconds

    def _room(self, seconds: float, rungs: int | None) -> bool:
        """True if there is time for a pair that takes so long, and for so many rungs after it.

        What is not proven yet (None) may take the part of the budget that a pair may take more.
        """
        if rungs is not None:
            return self.phases.left > (1 + rungs) * seconds
        return self.phases.may_begin(seconds)

    def _round(self, baseline: Finalist, finalist: Finalist, number: int) -> bool:
        """Take a pair of the finalist; False if the time is up."""
        try:
            pair = self._pair((baseline.settings, finalist.settings), number)
        except NotLive as obstacle:
            self.note(f"{finalist.name}: no more pairs, the time is up: {obstacle}")
            return False
        ended = any(trial.record.status == "timeout" for trial in (pair.first, pair.second))
        if ended and self.phases.left <= 0:
            self.view.proof_update("the budget ended in the middle of a pair")
            return False
        ours, theirs = baseline.launched(pair.first), finalist.launched(pair.second)
        if ours and theirs:
            error = None if pair.ratio is None else pair.ratio.error
            loose = is_loose(pair.first.result, pair.second.result)
            finalist.paired(baseline.rates[-1], gain_of(pair), error, loose)
            self.view.proof_update(told(finalist))
        if finalist.look().proven:
            self.findings.proof_seconds = self.findings.proof_seconds or self.phases.spent
        return True

    def _check(self, baseline: Finalist, finalist: Finalist) -> None:
        """Say so where the script as it is failed; the tuning ends unless something is known."""
        if baseline.failure is None:
            return
        if not (finalist.look().settled or finalist.look().proven):
            raise TuningEnded("script_failed", f"the script as it is failed: {baseline.failure}")
        why = f"the proof ended early, the script as it is failed: {baseline.failure}"
        self.findings.reason = why
        self.note(why)

    def obstacle(self, settings: Settings) -> str:
        """Reason why these settings cannot be measured live beside the script as it is, or ""."""
        facts = self.findings.facts
        if facts is None:
            return "nothing is known of the script"
        if self.trials.in_turn_only:
            return self.trials.in_turn_only
        if self.objective is not Objective.THROUGHPUT:
            return f"turns do not measure {self.objective.value}"
        alone = [trial for trial in self.trials.trials if not trial.in_turns]
        if any(trial.status == "completed" for trial in alone):
            return "the script is over before a live pair could be measured"
        peaks = (self._peaks(self.findings.base), self._peaks(settings))
        gpu = None if facts.device == "cpu" else facts.machine.gpu_memory_bytes
        return live_pair_obstacle([facts.result], peaks, gpu)

    def _peaks(self, settings: Settings) -> MemoryPeaks:
        """The largest peaks that trials with these settings had, if none had with more; or 0."""
        wider = [t for t in self.trials.trials if t.knobs.items() >= settings.items()]
        trials = [t for t in wider if t.knobs == dict(settings)] or wider
        return MemoryPeaks(
            max((t.peak_host_bytes or 0 for t in trials), default=0),
            max((t.peak_reserved_bytes or 0 for t in trials), default=0),
        )

    # -- one pair ------------------------------------------------------------------------------

    def _pair(self, both: tuple[Settings, Settings], number: int) -> Pair[Trial]:
        """A pair; what was searched last is launched first in the first one, for a process may be
        waiting with it."""
        turned = number % 2 == 0
        one, other = both[::-1] if turned else both
        coming = [(other, other, one), (other, one, one)]  # the next pair has the reverse order
        first, second = (
            self._request(purpose, settings, number, after)
            for purpose, settings, after in zip(
                PAIR_SIDES, both, coming[::-1] if turned else coming, strict=True
            )
        )
        pair = self._engine.take(first, second, number + 1, turned=turned)
        if pair.in_turn:
            self.note(f"launches one after the other, not live pairs: {pair.in_turn}")
        return pair

    def _request(
        self, purpose: TrialPurpose, settings: Settings, number: int, coming: Sequence[Settings]
    ) -> TrialRequest:
        """One side of a pair. A pair that has begun is measured to its end: half of one is none."""
        return TrialRequest(
            purpose,
            settings,
            self.rule(settings),
            seed_offset=number,
            hurry_at=self.phases.deadline,
            deadline=self.phases.latest,
            patience_seconds=self.phases.patience,
            following=coming,
        )

    def _beside(self, first: TrialRequest, second: TrialRequest) -> PairOutcome[Trial]:
        both = self.trials.run_pair((first, second))
        for trial in (both.first, both.second):
            if trial is not None:
                self.view.trial_finished(trial.record)
        return both


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
