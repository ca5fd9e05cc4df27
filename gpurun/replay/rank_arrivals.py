"""Collectives of several ranks: each lasts as long as it does for the rank that arrives last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gpurun.replay.step_events import is_collective
from gpurun.replay.step_graph import Edge, StepGraph, edges_of
from gpurun.timeline.columns import numbers_of
from gpurun.timeline.device_work import collectives_on
from gpurun.timeline.model import Timeline

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpurun.timeline.time_intervals import Times


def with_other_ranks(graph: StepGraph, others: Sequence[Timeline]) -> StepGraph:
    """The graph of one rank, whose collectives wait for the ranks of these timelines.

    The last rank's own work between two collectives stays as long as it was recorded. Collectives
    are the same if they end at the same time; where ranks differ in that, nothing is changed.
    """
    work = graph.events.work
    own = np.flatnonzero(work.where(is_collective) & work.on_device)
    matched = [_matching(work.end[own], each) for each in others]
    if len(own) < 2 or not matched or any(each is None for each in matched):
        return graph
    begins, ends = (np.array([m[i] for m in matched if m is not None]) for i in (0, 1))
    alone = np.minimum(work.end[own] - work.begin[own], (ends - begins).min(axis=0))
    job = 1 + 2 * (len(graph.events.calls) + own)
    runs = graph.of_kind(Edge.RUN) & np.isin(graph.edges.target, job + 1)
    lags = graph.edges.lag_ns.copy()
    lags[runs] = alone[np.searchsorted(own, graph.work_of(graph.edges.target[runs]))]
    between = np.maximum(begins.max(axis=0)[1:] - work.end[own][:-1], 0) + alone[1:]
    arrivals = edges_of(Edge.ARRIVAL, job[:-1] + 1, job[1:] + 1, between)
    return graph.with_lags(lags).joined(arrivals)


def _matching(ends: Times, other: Timeline) -> tuple[Times, Times] | None:
    """Begin and end of the other rank's collectives that ended with these; None if some lack."""
    kernels = other.kernels or ()
    if not kernels:
        return None
    device = int(numbers_of(kernels, "device")[0])
    found = collectives_on(other, device)
    theirs, begins = numbers_of(found, "end_ns"), numbers_of(found, "begin_ns")
    if len(theirs) < max(len(ends), 2):
        return None
    order = np.argsort(theirs, kind="stable")
    begins, theirs = begins[order], theirs[order]
    later = np.clip(np.searchsorted(theirs, ends), 1, len(theirs) - 1)
    closer = np.abs(theirs[later] - ends) < np.abs(theirs[later - 1] - ends)
    nearest: NDArray[np.intp] = np.where(closer, later, later - 1)
    if (np.diff(nearest) <= 0).any():
        return None
    return begins[nearest], theirs[nearest]
