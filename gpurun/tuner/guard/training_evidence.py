"""The evidence of one trial's training that the loss guard compares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpurun.knobs.api import Effect
from gpurun.measure.run_events import ProcessLog
from gpurun.measure.training_clock import step_clock
from gpurun.records.events import (
    AuditEvent,
    LoaderEvent,
    OptimizerEvent,
    SamplesEvent,
    StepRow,
)
from gpurun.records.messages.model_outputs import OutputsEvent

SMALL = 1e-3
"""Parameters whose gradient is this small against the largest hold rounding noise alone."""
PIPELINE_ONLY = "without that only pipeline changes are applied"
UNKNOWN_ROUNDING = "no trial shows what rounding alone does"

Norms = Mapping[str, "float | None"]


class RoundingReason(str):
    """A reason of the guard that a trial which only rounds may lift."""

    __slots__ = ()


class SamplesReason(str):
    """A reason of the guard: other samples reach the model, or in another order."""

    __slots__ = ()


class DrawsReason(str):
    """A reason of the guard that trials of the script as it is under other seeds may lift."""

    __slots__ = ()


@dataclass(frozen=True)
class Evidence:
    """One trial's training. `losses`: by step of the clock, NaN where none was seen, infinity where
    it was not finite. `microbatches`: backward passes by step. Trials of one `seed` were seeded
    alike. `loaders` and `samples` are those of the training loaders.
    """

    seed: int
    losses: tuple[float, ...]
    microbatches: tuple[int, ...]
    audits: tuple[AuditEvent, ...] = ()
    samples: tuple[SamplesEvent, ...] = ()
    loaders: tuple[LoaderEvent, ...] = ()
    optimizers: tuple[OptimizerEvent, ...] = ()
    rates: tuple[tuple[int, tuple[float | None, ...]], ...] = ()
    """Learning rates of all groups, from a step on."""
    outputs: tuple[OutputsEvent, ...] = ()
    """Outputs of root modules without gradients."""
    forward_only: bool = False
    """True if its steps are calls of a root module: nothing was trained."""
    rounded: bool = False
    """True if parameters were rounded before its first step: the script as it is but for that."""

    @property
    def finite_losses(self) -> bool:
        """True if the trial has a loss curve at all."""
        return any(math.isfinite(x) for x in self.losses)

    @property
    def never_finite(self) -> bool:
        """True if it has losses, and not one is finite."""
        return self.nonfinite_from is not None and not self.finite_losses

    @property
    def nonfinite_from(self) -> int | None:
        """The step, counted from 1, from which on no loss is finite; None if the last one is."""
        steps = list(enumerate(self.losses, 1))
        last = max((step for step, loss in steps if math.isfinite(loss)), default=0)
        return next((step for step, loss in steps if step > last and math.isinf(loss)), None)


@dataclass(frozen=True)
class Comparison:
    """One candidate trial against the baseline's trials. `partners` are those of the same seed."""

    candidate: Evidence
    baselines: Sequence[Evidence]
    effect: Effect
    rounded: Evidence | None = None
    """A baseline trial whose parameters were rounded, where there is one."""
    partners: Sequence[Evidence] = field(init=False)

    def __post_init__(self) -> None:
        same = [b for b in self.baselines if b.seed == self.candidate.seed]
        object.__setattr__(self, "partners", same)

    @property
    def partner(self) -> Evidence | None:
        """The first baseline trial of the same seed."""
        return self.partners[0] if self.partners else None

    @property
    def steps(self) -> list[tuple[AuditEvent, AuditEvent]]:
        """The candidate's audited steps beside the partner's, from the first."""
        if self.partner is None:
            return []
        return list(zip(self.candidate.audits, self.partner.audits, strict=False))

    @property
    def same_data(self) -> bool:
        """Every sample looked at is, byte for byte, what a partner was handed at that place.

        Then no random number of the data set was drawn elsewhere either. A pass that no partner
        came to says nothing.
        """
        for ours in self.candidate.samples:
            theirs = [s for p in self.partners for s in p.samples if same_pass(s, ours)]
            if theirs and not any(_same_samples(s, ours) for s in theirs):
                return False
        return bool(self.partners)

    @property
    def other_draws(self) -> bool:
        """The data set's random parts were drawn anew. Its other parts must be known to repeat.

        Whether these are as they were, and the random ones alike, is for `sample_checks` to say.
        """
        if self.partner is None or self.same_data:
            return False
        loaders = {s.loader for s in self.candidate.samples}
        theirs = [s for b in self.baselines for s in b.samples if s.loader in loaders]
        repeatable = {s.loader: s.repeatable for s in theirs if s.repeatable is not None}
        known = repeatable.keys() == loaders
        return known and not all(all(leaves) for leaves in repeatable.values())

    @property
    def same_draws(self) -> bool:
        """Nothing random may differ from the partner: the first step is the same but for rounding.

        Other kernels may take other random numbers (dropout in a compiled model).
        """
        drawing = any(a.draws for b in self.baselines for a in b.audits)
        return self.same_data and not (drawing and self.effect is not Effect.PIPELINE)


def sizeable(norms: Norms) -> dict[str, float]:
    """Norms without those that hold rounding noise alone."""
    known = {n: x for n, x in norms.items() if x is not None and math.isfinite(x)}
    largest = max(known.values(), default=0.0)
    return {n: x for n, x in known.items() if x > SMALL * largest}


def same_pass(a: SamplesEvent, b: SamplesEvent) -> bool:
    """True if both are of the same loader's pass of the same number."""
    return a.loader == b.loader and a.epoch == b.epoch


def same_start(a: SamplesEvent, b: SamplesEvent) -> bool:
    """True if the shorter order is the beginning of the other one."""
    common = min(len(a.order), len(b.order))
    return a.order[:common] == b.order[:common]


def _same_samples(a: SamplesEvent, b: SamplesEvent) -> bool:
    return same_start(a, b) and all(
        a.checksums.get(index, sums) == sums for index, sums in b.checksums.items()
    )


def evidence(log: ProcessLog, seed: int, rounded: bool = False) -> Evidence | None:
    """The evidence in a process's log; None if it took no step."""
    clock = step_clock(log)
    if clock is None:
        return None
    training = set(clock.training_loaders)
    return Evidence(
        seed=seed,
        losses=tuple(clock.steps.loss),
        microbatches=tuple(clock.steps[StepRow.MICROBATCHES]),
        audits=_of_the_last_clock(log.audits),
        samples=tuple(s for s in log.samples if s.loader in training or not training),
        loaders=tuple(x for x in log.loaders if x.loader in training),
        optimizers=log.optimizers,
        rates=() if log.rates is None else log.rates.changes,
        outputs=log.outputs,
        forward_only=clock.kind == "forward",
        rounded=rounded,
    )


def _of_the_last_clock(audits: Sequence[AuditEvent]) -> tuple[AuditEvent, ...]:
    """Without the audits of a clock that a better one replaced (evaluation before training)."""
    starts = [number for number, audit in enumerate(audits) if audit.step == 1]
    return tuple(audits[starts[-1] :]) if starts else tuple(audits)
