"""The graph replayed: when each moment comes, and what the steps are then made of."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpurun.replay.step_events import Edge
from gpurun.replay.step_graph import StepGraph
from gpurun.timeline.time_intervals import Intervals

if TYPE_CHECKING:
    from gpurun.replay.step_events import Indices
    from gpurun.timeline.time_intervals import Times


@dataclass(frozen=True)
class StepFigures:
    """Means of the steps that are compared, in milliseconds.

    A step lasts from the end of the device's work of one step to that of the next. `wait_ms`: the
    host waits for the device. `idle_ms`: the device has nothing to do. `host_ms`: from the last
    call of one step to that of the next; less than the step where the host runs ahead.
    """

    step_ms: float
    wait_ms: float
    idle_ms: float
    host_ms: float

    def deviation(self, other: StepFigures) -> float:
        """The sum of all differences, as a share of the other's step."""
        pairs = zip(astuple(self), astuple(other), strict=True)
        return float(sum(abs(a - b) for a, b in pairs)) / other.step_ms


def replay(graph: StepGraph) -> Times:
    """When each moment comes, in nanoseconds from the graph's begin."""
    times = [0] * len(graph.recorded_ns)
    edges = graph.edges
    rows = zip(edges.source.tolist(), edges.target.tolist(), edges.lag_ns.tolist(), strict=True)
    for source, target, lag in rows:
        moment = times[source] + lag
        if moment > times[target]:
            times[target] = moment
    return np.array(times, dtype=np.int64)


def replayed_figures(graph: StepGraph) -> StepFigures:
    """The figures of the replayed steps."""
    times = replay(graph)
    calls, counted = len(graph.events.calls), graph.counted
    lengths = times[2 + 2 * counted] - times[1 + 2 * counted]
    waits = np.maximum(lengths - own_times(graph)[counted], 0)
    host = times[2 + 2 * graph.step_calls]
    return _figures(graph, times[1 + 2 * calls :: 2], times[2 + 2 * calls :: 2], waits, host)


def median_step_ms(graph: StepGraph) -> float:
    """The median of the replayed steps, in milliseconds."""
    ends = step_ends(graph, replay(graph)[2 + 2 * len(graph.events.calls) :: 2])
    return float(np.median(np.diff(ends))) / 1e6


def recorded_figures(graph: StepGraph) -> StepFigures:
    """The figures of the recorded steps."""
    work, host = graph.events.work, graph.events.calls.end[graph.step_calls]
    return _figures(graph, work.begin, work.end, graph.waits.waited_ns[graph.counted], host)


def own_times(graph: StepGraph) -> Times:
    """What each call, then each work, takes by itself, as the graph has it now."""
    chosen = graph.of_kind(Edge.CALL, Edge.RUN)
    times = np.zeros(len(graph.events.calls) + len(graph.events.work), dtype=np.int64)
    times[graph.call_of(graph.edges.target[chosen])] = graph.edges.lag_ns[chosen]
    return times


def step_ends(graph: StepGraph, ends: Times) -> Times:
    """When the device has done the work of each step. `ends`: of all work."""
    found = [int(ends[work].max()) if len(work) else -1 for work in graph.step_work]
    return np.array(found, dtype=np.int64)


def _figures(
    graph: StepGraph, begins: Times, ends: Times, waits: Times, host: Times
) -> StepFigures:
    steps = step_ends(graph, ends)
    count = len(steps) - 1
    begin, end = int(steps[0]), int(steps[-1])
    here: Indices = np.flatnonzero(graph.events.work.on_device)
    busy = Intervals.union(begins[here], ends[here]).within(begin, max(end, begin))
    return StepFigures(
        step_ms=(end - begin) / count / 1e6,
        wait_ms=float(waits.sum()) / count / 1e6,
        idle_ms=(end - begin - busy.total_ns) / count / 1e6,
        host_ms=int(host[-1] - host[0]) / count / 1e6,
    )
