"""What one launch shows of its training: the plain record that `same` compares.

The runtime writes it as events of audited steps (`gpurun.runtime.trial.audit_*`); nothing here is
computed but the choice of the clock whose steps count.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from gpurun.measure.run_events import ProcessLog
from gpurun.measure.training_clock import step_clock
from gpurun.records.events import (
    AuditEvent,
    LoaderEvent,
    OptimizerEvent,
    SamplesEvent,
    StepRow,
)
from gpurun.records.messages.training_events import OutputsEvent


@dataclass(frozen=True)
class LaunchAudit:
    """One launch's training. Launches of one `seed` were seeded alike.

    `losses`: by step of the clock, NaN where none was seen, infinity where it was not finite.
    `microbatches`: backward passes by step. `loaders` and `samples` are those of the training
    loaders.
    """

    seed: int
    losses: tuple[float, ...]
    microbatches: tuple[int, ...]
    audits: tuple[AuditEvent, ...] = ()
    samples: tuple[SamplesEvent, ...] = ()
    again: Mapping[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    """By loader: its audited samples, loaded again in passes (`SamplesEvent.again`)."""
    loaders: tuple[LoaderEvent, ...] = ()
    optimizers: tuple[OptimizerEvent, ...] = ()
    rates: tuple[tuple[int, tuple[float | None, ...]], ...] = ()
    """Learning rates of all groups, from a step on."""
    outputs: tuple[OutputsEvent, ...] = ()
    """Outputs of root modules without gradients."""
    forward_only: bool = False
    """True if its steps are calls of a root module: nothing was trained."""
    rounded: bool = False
    """True if it is the script as it is, but rounds as half precision does."""
    still: bool = False
    """True if its model draws no random numbers (dropout is off): only its steps are compared."""

    @property
    def finite_losses(self) -> bool:
        """True if the launch has a loss curve at all."""
        return any(math.isfinite(x) for x in self.losses)

    @property
    def nonfinite_from(self) -> int | None:
        """The step, counted from 1, from which on no loss is finite; None if the last one is."""
        steps = list(enumerate(self.losses, 1))
        last = max((step for step, loss in steps if math.isfinite(loss)), default=0)
        return next((step for step, loss in steps if step > last and math.isinf(loss)), None)

    @property
    def never_finite(self) -> bool:
        """True if it has losses, and not one is finite."""
        return self.nonfinite_from is not None and not self.finite_losses

    @property
    def draws(self) -> bool:
        """True if the model draws random numbers in an audited step (dropout)."""
        return any(audit.draws for audit in self.audits)


def audit_of(
    log: ProcessLog, seed: int, rounded: bool = False, still: bool = False
) -> LaunchAudit | None:
    """The audit in a process's log; None if it took no step."""
    clock = step_clock(log)
    if clock is None:
        return None
    # without the audits of a clock that a better one replaced (evaluation before training)
    starts = [number for number, audit in enumerate(log.audits) if audit.step == 1]
    training = set(clock.training_loaders)
    samples = tuple(s for s in log.samples if s.loader in training or not training)
    return LaunchAudit(
        seed=seed,
        losses=tuple(clock.steps.loss),
        microbatches=tuple(clock.steps[StepRow.MICROBATCHES]),
        audits=tuple(log.audits[starts[-1] if starts else 0 :]),
        samples=samples,
        again={s.loader: s.again for s in samples if s.again},
        loaders=tuple(x for x in log.loaders if x.loader in training),
        optimizers=log.optimizers,
        rates=() if log.rates is None else log.rates.changes,
        outputs=log.outputs,
        forward_only=clock.kind == "forward",
        rounded=rounded,
        still=still,
    )
