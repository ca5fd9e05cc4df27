"""Checks whether a proof can use live pairs, and measures one."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpurun.arguments.options import Objective
from gpurun.records.facts import Facts
from gpurun.records.tuning import PAIR_SIDES, TrialPurpose, TrialRecord
from gpurun.trials.live_pair_obstacle import MemoryPeaks, live_pair_obstacle
from gpurun.trials.outcome import PairOutcome
from gpurun.tuner.proof.paired_proof import PairResult
from gpurun.tuner.trial_series import TrialSeries
from gpurun.tuner.tuning_trial import Trial, TrialRequest

MakeRequest = Callable[[TrialPurpose, Mapping[str, Any], int], TrialRequest]
"""(purpose, settings, seed offset) → what to launch as one side."""


@dataclass
class LiveProof:
    """Measures live pairs of one tuning. `base`: the settings of the baseline's side.

    `purposes`: of the trials of both sides.
    """

    series: TrialSeries
    base: Mapping[str, Any]
    objective: Objective
    request: MakeRequest
    finished: Callable[[TrialRecord], None]
    purposes: tuple[TrialPurpose, TrialPurpose] = PAIR_SIDES
    notes: dict[str, None] = field(init=False, default_factory=dict)
    """Disturbances of the GPU during its pairs, each once."""

    def obstacle(self, facts: Facts, finalists: Sequence[Mapping[str, Any]]) -> str:
        """Reason why these finalists cannot be measured live beside the baseline, or ""."""
        if self.series.in_turn_only:
            return self.series.in_turn_only
        if self.objective is Objective.ENERGY:
            return "turns are too short for a GPU's counter of joules"
        alone = [trial for trial in self.series.trials if not trial.in_turns]
        if any(trial.status == "completed" for trial in alone):
            return "the script is over before a live pair could be measured"
        of_finalists = [self._peaks(settings) for settings in finalists]
        largest = MemoryPeaks(
            max((peaks.host for peaks in of_finalists), default=0),
            max((peaks.reserved for peaks in of_finalists), default=0),
        )
        gpu = None if facts.device == "cpu" else facts.machine.gpu_memory_bytes
        return live_pair_obstacle([facts.result], (self._peaks(self.base), largest), gpu)

    def __call__(self, settings: Mapping[str, Any], number: int) -> PairResult:
        """Measure one pair. The sides change places from pair to pair: what is launched second may
        have other luck with its memory, on a CPU by 10 % (scripts/recordings/live_pairs.json).
        """
        began = time.monotonic()
        sides = (
            self.request(self.purposes[0], self.base, number),
            self.request(self.purposes[1], settings, number),
        )
        if number % 2:
            trials = self.series.run_pair(sides[::-1]).turned
        else:
            trials = self.series.run_pair(sides)
        self.notes.update(dict.fromkeys(trials.notes))
        for trial in (trials.first, trials.second):
            if trial is not None:
                self.finished(trial.record)
        return PairResult(
            trials.first,
            trials.second,
            _gain(trials, self.objective),
            time.monotonic() - began,
            _text(trials),
            _error(trials, self.objective),
            trials.spare_seconds,
        )

    def _peaks(self, settings: Mapping[str, Any]) -> MemoryPeaks:
        """The largest peaks that trials with these settings had; 0 if there was none."""
        trials = [t for t in self.series.trials if t.knobs == dict(settings)]
        return MemoryPeaks(
            max((t.peak_host_bytes or 0 for t in trials), default=0),
            max((t.peak_reserved_bytes or 0 for t in trials), default=0),
        )


def _text(trials: PairOutcome[Trial]) -> str:
    """Reason why a pair is of no use: its turns, or what one side measured."""
    sides = (trials.first, trials.second)
    failures = (trials.failure, *(side.failure for side in sides if side is not None))
    said = next((failure.text for failure in failures if failure is not None), "")
    return said or "a side's score was not measured"


def _error(trials: PairOutcome[Trial], objective: Objective) -> float:
    """The error of the gain by turns; 0 where turns do not measure it."""
    if trials.ratio is None or objective is not Objective.THROUGHPUT:
        return 0.0
    return trials.ratio.error


def _gain(trials: PairOutcome[Trial], objective: Objective) -> float | None:
    """The factor by which the second side is better; None if that was not measured."""
    first, second = trials.first, trials.second
    if trials.ratio is None or first is None or second is None:
        return None
    if not first.score or not second.score:
        return None
    if objective is not Objective.THROUGHPUT:
        return second.score / first.score
    steps = min(first.counted_steps, second.counted_steps)
    samples = second.samples_a_step(steps) / first.samples_a_step(steps)
    return math.exp(-trials.ratio.log) * samples
