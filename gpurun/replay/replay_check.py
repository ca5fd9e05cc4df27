"""Does the replayed graph match the recorded steps? Only then are its changes worth something."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass

from gpurun.records.profile_figures import ReplayFigures
from gpurun.replay import graph_changes as changes
from gpurun.replay import replayed_steps as steps
from gpurun.replay.replayed_steps import StepFigures, median_step_ms, replayed_figures
from gpurun.replay.step_events import NotReplayable
from gpurun.replay.step_graph import StepGraph, step_graph
from gpurun.replay.what_ifs import Replay
from gpurun.timeline.device_work import steady
from gpurun.timeline.model import Phase, Timeline
from gpurun.timeline.time_intervals import intervals

COMPARED = ("the step", "the host's wait", "the device's idle time", "the host's pace")
CLOSE = 0.05
"""These are matched if each differs by no more than this share of the step."""
HOST_EXPLAINS = 0.05
"""At least this part of what the profiled steps are slower by must come back if the recording's
costs are taken off the host. Of 15 recordings it was 0.00 in ten whose device was always busy, and
0.08 to 0.56 in five."""


@dataclass(frozen=True)
class StepTimes:
    """The median step that was profiled, and the median one that was not, in milliseconds."""

    profiled_ms: float
    plain_ms: float


Replayed = tuple[ReplayFigures, Replay | None]
"""How well a replay matches, and the graph for changes; None where the steps have no graph."""


def replayed_timeline(
    timeline: Timeline,
    times: StepTimes | None = None,
    others: Sequence[Timeline] = (),
    *,
    workers: bool = False,
) -> Replayed:
    """The replay of a rank's steps, without the cost of recording.

    `times`: where steps that were not profiled are known. `others`: the timelines of other ranks.
    `workers`: batches come from worker processes. Gains by changes count only if the figures have
    no `mismatch`.
    """
    timeline = steady(timeline)
    plain_ms = None if times is None else times.plain_ms
    try:
        graph = changes.with_other_ranks(step_graph(timeline), others)
    except NotReplayable as reason:
        return ReplayFigures(plain_step_ms=plain_ms, mismatch=str(reason)), None
    if workers and (waits := timeline.named(Phase.DATA.value)):
        graph = changes.with_loader_apart(graph, intervals(waits))
    cost, plain = _without_recording(graph, times)
    return _figures(graph, plain, cost, plain_ms), Replay(plain, timeline)


def _without_recording(graph: StepGraph, times: StepTimes | None) -> tuple[float, StepGraph]:
    """What recording adds to a call of the host, in nanoseconds, and the graph without it.

    It is (profiled - plain) / calls. None is taken off where that does not make the replay faster:
    then the device was slower in these steps, not the host.
    """
    slower = 0.0 if times is None else (times.profiled_ms - times.plain_ms) * 1e6
    if slower <= 0:
        return 0.0, graph
    cost = slower / (len(graph.counted) / (len(graph.step_work) - 1) or 1)
    plain = changes.without_recording(graph, cost)
    back = (median_step_ms(graph) - median_step_ms(plain)) * 1e6
    return (cost, plain) if back >= HOST_EXPLAINS * slower else (0.0, graph)


def _figures(
    graph: StepGraph, plain: StepGraph, cost_ns: float, plain_ms: float | None
) -> ReplayFigures:
    measured, replayed = steps.recorded_figures(graph), replayed_figures(graph)
    device = replayed_figures(changes.without_device(graph))
    host = replayed_figures(changes.without_host(graph))
    plain_replayed = median_step_ms(plain)
    reason = _mismatch(measured, replayed, {"the device": device, "the host": host})
    far = plain_ms is not None and abs(plain_replayed - plain_ms) > CLOSE * plain_ms
    if reason is None and plain_ms is not None and far:
        reason = f"a step takes {plain_replayed:.2f} ms in the replay and {plain_ms:.2f} ms "
        reason += "unprofiled"
        if cost_ns == 0 and plain_replayed > plain_ms:
            reason += ": in the profiled steps the device was slower, as if its clock had fallen"
    return ReplayFigures(
        steps=len(graph.step_work) - 1,
        plain_step_ms=plain_ms,
        replayed_plain_ms=plain_replayed,
        measured_ms=measured.step_ms,
        replayed_ms=replayed.step_ms,
        measured_wait_ms=measured.wait_ms,
        replayed_wait_ms=replayed.wait_ms,
        measured_idle_ms=measured.idle_ms,
        replayed_idle_ms=replayed.idle_ms,
        step_ms_without_device=device.step_ms,
        step_ms_without_host=host.step_ms,
        recording_us_a_call=cost_ns / 1e3,
        inferred_edges=graph.inferred,
        mismatch=reason,
    )


def _mismatch(
    measured: StepFigures, replayed: StepFigures, without: Mapping[str, StepFigures]
) -> str | None:
    """Why the replay does not stand for the recorded steps; None where it does.

    `without`: replays without the work of one side each.
    """
    if measured.step_ms <= 0:
        return "the recorded steps take no time"
    for name, real, found in zip(COMPARED, astuple(measured), astuple(replayed), strict=True):
        if abs(found - real) > CLOSE * measured.step_ms:
            return f"{name} is {found:.2f} ms in the replay and {real:.2f} ms as recorded"
    off = replayed.deviation(measured)
    same = (side for side, other in without.items() if off >= other.deviation(measured))
    return next((f"a replay without the work of {side} matches as well" for side in same), None)
