"""What one trial shows of its training, as the loss guard compares it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpurun.measure.clock import step_clock
from gpurun.measure.events import ProcessLog
from gpurun.records.events import AuditEvent, SamplesEvent, StepRow


@dataclass(frozen=True)
class Evidence:
    """One trial's training. `losses`: by step of the clock, NaN where it was none or not finite.

    `microbatches`: backward passes by step. `same_seed` trials have equal `seed`.
    """

    seed: int
    losses: tuple[float, ...]
    microbatches: tuple[int, ...]
    audits: tuple[AuditEvent, ...]
    samples: tuple[SamplesEvent, ...]

    @property
    def finite_losses(self) -> bool:
        """Whether the trial has a loss curve at all."""
        return any(math.isfinite(x) for x in self.losses)


def evidence(log: ProcessLog, seed: int) -> Evidence | None:
    """The evidence in a process's log; None if it took no step."""
    clock = step_clock(log)
    if clock is None:
        return None
    training = set(clock.training_loaders)
    return Evidence(
        seed=seed,
        losses=tuple(clock.steps.loss),
        microbatches=tuple(clock.steps[StepRow.MICROBATCHES]),
        audits=log.audits,
        samples=tuple(s for s in log.samples if s.loader in training or not training),
    )
