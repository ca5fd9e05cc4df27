"""One trial: a short launch of the script, as it is asked for and as it ended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpurun.arguments.options import Objective
from gpurun.measure.measured_window import USUAL_AMONG
from gpurun.measure.run_events import ProcessLog
from gpurun.measure.training_clock import step_clock
from gpurun.records.failure import Failure, FailureKind
from gpurun.records.result import ENDED_WELL, RunResult
from gpurun.records.spec import StopRule, WorkerTurnPlan
from gpurun.records.tuning import TrialPurpose, TrialRecord
from gpurun.same.launch_audit import LaunchAudit
from gpurun.stats.descriptive import median


@dataclass(frozen=True)
class Trial:
    """A finished trial. `result`, `log` and `evidence` are None where nothing was recorded."""

    record: TrialRecord
    result: RunResult | None
    log: ProcessLog | None
    evidence: LaunchAudit | None
    objective: Objective = Objective.THROUGHPUT
    failure: Failure | None = None
    """Reason why it is of no use; None where it was measured."""
    late: bool = False
    """True if it was ended because it took all the time that it might."""

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.record.purpose.value.removeprefix("pair ")

    @property
    def whole(self) -> bool:
        """True if the script ended by itself."""
        return self.record.status == "completed"

    @property
    def score(self) -> float | None:
        """The score for the tuning's objective, the higher the better; None if it failed."""
        if self.objective is Objective.THROUGHPUT or self.throughput is None:
            return self.throughput
        record = self.record
        energy = self.objective is Objective.ENERGY
        price = record.joules_per_sample if energy else record.peak_memory_bytes
        return None if not price else 1.0 / price

    @property
    def no_score(self) -> str:
        """What to say of a trial without a score, whose record gives no reason."""
        return f"its {self.objective.value} was not measured"

    @property
    def gain(self) -> float | None:
        """Speed over the reference, in turns with it; None if it took none."""
        return self.record.gain_over_reference

    def samples_a_step(self, steps: int = USUAL_AMONG) -> float:
        """Of a usual step; 1 where samples cannot be counted: then scores are steps.

        The median of the first `steps`: a side that came further, where batches differ in size or
        are sorted by it, would else have another usual step for no other reason.
        """
        counted = self._samples[:steps]
        return median(counted) if counted else 1.0

    @property
    def counted_steps(self) -> int:
        """Steps whose samples are known."""
        return len(self._samples)

    @cached_property
    def _samples(self) -> list[int]:
        if self.result is None or self.result.samples is None or self.log is None:
            return []
        clock = step_clock(self.log)
        return [] if clock is None else [samples for samples in clock.samples if samples > 0]

    @property
    def throughput(self) -> float | None:
        """Samples (or steps, where samples cannot be counted) a second; None if it failed."""
        if self.record.status not in ENDED_WELL or self.result is None:
            return None
        if self.result.samples_per_second is not None:
            return self.result.samples_per_second
        mean = self.result.step_time_ms
        return None if mean is None else 1000.0 / mean.mean

    @property
    def was_slow(self) -> bool:
        """True if its time was over while it trained: no file that it found is the cause."""
        late = self.record.failure is FailureKind.OUT_OF_TIME
        return late and self.result is not None and self.result.steps > 0


@dataclass(frozen=True)
class TrialRequest:
    """A trial to launch: its settings by knob, its length and its seeds."""

    purpose: TrialPurpose
    settings: Mapping[str, Any]
    stop: StopRule
    seed_offset: int = 0
    hold: bool = False
    patience_seconds: float | None = None
    """A trial that records and prints nothing for so long hangs; None: by what earlier ones took.
    One that holds (the first) may be silent to its limit: it may have to download its data."""
    limit_seconds: float = math.inf
    """A trial is given up after this long, and earlier if other trials were quicker."""
    hurry_at: float = math.inf
    """By the monotonic clock: then the turns of a live pair end with their first ratio."""
    deadline: float = math.inf
    """By the monotonic clock: then it is given up, however often a pair was launched again."""
    rounded: bool = False
    """True if it only rounds, as half precision does; see `TrialSpec.rounding_draw`."""
    rounding_draw: int = 0
    still: bool = False
    """True if its model draws no random numbers: only its audited steps count."""
    ceilings: bool = False
    """True if model and loader run alone in it: it has no speed of its own."""
    worker_turns: WorkerTurnPlan | None = None
    """The numbers of loader workers that it measures, without a speed of its own."""
    in_turns: bool = False
    """True if it takes turns with the reference, if there is one."""
    following: Sequence[Mapping[str, Any]] = ()
    """The settings of the launches after it, as far as one can know; none: the same."""

    @property
    def shows_samples(self) -> bool:
        """True if its samples are compared with those of the script as it is, under one seed."""
        apart = self.rounded or self.still or self.ceilings or self.worker_turns is not None
        return not apart and not self.seed_offset
