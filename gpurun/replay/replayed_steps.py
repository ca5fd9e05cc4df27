"""The graph replayed: when each moment comes, and what the steps are then made of."""

from __future__ import annotations

from dataclasses import astuple, dataclass

import numpy as np

from gpurun.replay.step_events import Edge
from gpurun.replay.step_graph import StepGraph
from gpurun.timeline.columns import Times
from gpurun.timeline.time_intervals import Intervals


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
    times, counted = replay(graph), graph.counted
    lengths = times[2 + 2 * counted] - times[1 + 2 * counted]
    return _figures(graph, times, np.maximum(lengths - own_times(graph)[counted], 0))


def recorded_figures(graph: StepGraph) -> StepFigures:
    """The figures of the recorded steps."""
    return _figures(graph, graph.recorded_ns, graph.waits.waited_ns[graph.counted])


def median_step_ms(graph: StepGraph, times: Times | None = None) -> float:
    """The median of the replayed steps, or that of these moments, in milliseconds."""
    ends = _step_ends(graph, replay(graph) if times is None else times)
    return float(np.median(np.diff(ends))) / 1e6


def own_times(graph: StepGraph) -> Times:
    """What each call, then each work, takes by itself, as the graph has it now."""
    chosen = graph.of_kind(Edge.CALL, Edge.RUN)
    times = np.zeros(len(graph.events.calls) + len(graph.events.work), dtype=np.int64)
    times[graph.call_of(graph.edges.target[chosen])] = graph.edges.lag_ns[chosen]
    return times


def _step_ends(graph: StepGraph, times: Times) -> Times:
    """When the device has done the work of each step."""
    ends = times[2 + 2 * len(graph.events.calls) :: 2]
    found = [int(ends[work].max()) if len(work) else -1 for work in graph.step_work]
    return np.array(found, dtype=np.int64)


def _figures(graph: StepGraph, times: Times, waits: Times) -> StepFigures:
    steps, host = _step_ends(graph, times), times[2 + 2 * graph.step_calls]
    count, begin, end = len(steps) - 1, int(steps[0]), int(steps[-1])
    begins, ends = (times[n + 2 * len(graph.events.calls) :: 2] for n in (1, 2))
    here = graph.events.work.on_device
    busy = Intervals.union(begins[here], ends[here]).within(begin, max(end, begin))
    return StepFigures(
        step_ms=(end - begin) / count / 1e6,
        wait_ms=float(waits.sum()) / count / 1e6,
        idle_ms=(end - begin - busy.total_ns) / count / 1e6,
        host_ms=int(host[-1] - host[0]) / count / 1e6,
    )
