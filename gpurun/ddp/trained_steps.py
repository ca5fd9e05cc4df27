"""What a launch showed of its first steps, of all its ranks together: what `--ddp` compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpurun.measure.run_events import ProcessLog
from gpurun.measure.training_clock import step_clock
from gpurun.records.spec import SEED
from gpurun.same.launch_audit import audit_of
from gpurun.same.step_distances import gradients_by_name


@dataclass(frozen=True)
class TrainedStep:
    """One step. `gradients`: some numbers of each parameter's gradient. `norms` and `updates` are
    of all numbers."""

    gradients: Mapping[str, tuple[float, ...]]
    norms: Mapping[str, float | None]
    updates: Mapping[str, float]


@dataclass(frozen=True)
class TrainedSteps:
    """The audited steps of one launch, and the data-set indices that its ranks read for them."""

    steps: tuple[TrainedStep, ...]
    samples: frozenset[int]


def trained_steps(logs: Sequence[ProcessLog], ranks: int) -> TrainedSteps | None:
    """The steps that all ranks show; None if one shows none. Without ranks: of the one process.

    After the exchange all ranks have the same gradients and updates: those of rank 0 are taken.
    """
    trained = [log for log in logs if log.audits]
    if ranks > 1:
        by_rank = {log.process.rank: log for log in trained}
        trained = [by_rank[rank] for rank in range(ranks) if rank in by_rank]
    launches = [audit for log in trained[:ranks] if (audit := audit_of(log, SEED)) is not None]
    if len(launches) < ranks:
        return None
    steps = tuple(
        TrainedStep(gradients_by_name(first), first.gradient_norms, first.update_norms)
        for first, *_ in zip(*(launch.audits for launch in launches), strict=False)
    )
    samples = frozenset(index for log in trained[:ranks] for index in _samples(log))
    return TrainedSteps(steps, samples)


def _samples(log: ProcessLog) -> set[int]:
    """The indices of training samples; a stream's have none."""
    clock = step_clock(log)
    training = set() if clock is None else set(clock.training_loaders)
    training -= {loader.loader for loader in log.loaders if loader.iterable}
    return {index for pass_ in log.samples if pass_.loader in training for index in pass_.order}
