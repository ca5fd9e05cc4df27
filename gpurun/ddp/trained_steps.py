"""What a launch showed of its first steps, of all its ranks together: what `--ddp` compares."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from gpurun.measure.run_events import ProcessLog
from gpurun.measure.training_clock import step_clock
from gpurun.records.events import AuditEvent

Norms = Mapping[str, "float | None"]


@dataclass(frozen=True)
class TrainedStep:
    """One step. After the exchange all ranks have the same gradients and updates: those of rank 0.

    `losses`: by rank, of its share of the batch; NaN where none was seen. `gradients`: some numbers
    of each parameter's gradient, in the first steps only; `norms` and `updates` are of all numbers.
    """

    losses: tuple[float, ...]
    gradients: Mapping[str, tuple[float, ...]]
    norms: Norms
    updates: Mapping[str, float]


@dataclass(frozen=True)
class TrainedSteps:
    """The audited steps of one launch, and the data-set indices that its ranks read for them."""

    steps: tuple[TrainedStep, ...]
    samples: frozenset[int]


def trained_steps(logs: Sequence[ProcessLog], ranks: int) -> TrainedSteps | None:
    """The steps that all ranks show; None if one shows none. Without ranks: of the one process."""
    trained = [log for log in logs if _audits(log)]
    if ranks > 1:
        by_rank = {log.process.rank: log for log in trained}
        trained = [by_rank[rank] for rank in range(ranks) if rank in by_rank]
    if len(trained) < ranks:
        return None
    audits = [_audits(log) for log in trained[:ranks]]
    steps = tuple(_step(same) for same in zip(*audits, strict=False))
    samples = frozenset(index for log in trained[:ranks] for index in _samples(log))
    return TrainedSteps(steps, samples)


def _step(audits: Sequence[AuditEvent]) -> TrainedStep:
    first = audits[0]
    losses = tuple(math.nan if a.loss is None else a.loss for a in audits)
    return TrainedStep(losses, _gradients(first), first.gradient_norms, first.update_norms)


def _audits(log: ProcessLog) -> Sequence[AuditEvent]:
    """Without the audits of a clock that a better one replaced (evaluation before training)."""
    starts = [number for number, audit in enumerate(log.audits) if audit.step == 1]
    return log.audits[starts[-1] :] if starts else log.audits


def _samples(log: ProcessLog) -> set[int]:
    clock = step_clock(log)
    training = set() if clock is None else set(clock.training_loaders)
    return {index for pass_ in log.samples if pass_.loader in training for index in pass_.order}


def _gradients(audit: AuditEvent) -> dict[str, tuple[float, ...]]:
    """The sampled numbers of each gradient; empty where they cannot be told apart."""
    names = sorted(n for n, x in audit.gradient_norms.items() if x is not None)
    if len(names) != len(audit.gradient_counts):  # some are sparse
        return {}
    values = iter(audit.gradient_values)
    counts = zip(names, audit.gradient_counts, strict=True)
    return {name: tuple(islice(values, count)) for name, count in counts}
