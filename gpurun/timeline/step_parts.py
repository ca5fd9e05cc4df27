"""The parts of a step by gpurun's own ranges."""

from __future__ import annotations

from gpurun.records.profile_figures import StepParts
from gpurun.timeline.device_work import a_step, intervals
from gpurun.timeline.idle_gaps import data_ranges
from gpurun.timeline.model import Phase, Range, Timeline


def step_parts(timeline: Timeline) -> StepParts | None:
    """Mean time of each part a step; None where steps or ranges are not marked."""
    if timeline.ranges is None or not timeline.steps:
        return None
    data = data_ranges(timeline)
    parts = StepParts(
        data_ms=None if data is None else _mean_ms(timeline, data),
        forward_ms=_phase_ms(timeline, Phase.FORWARD),
        backward_ms=_phase_ms(timeline, Phase.BACKWARD),
        optimizer_ms=_phase_ms(timeline, Phase.OPTIMIZER),
    )
    return None if parts == StepParts(None, None, None, None) else parts


def _phase_ms(timeline: Timeline, phase: Phase) -> float | None:
    found = [each for each in timeline.ranges or () if each.name == phase.value]
    return _mean_ms(timeline, found) if found else None


def _mean_ms(timeline: Timeline, ranges: list[Range]) -> float | None:
    spans = intervals(ranges).within(timeline.window_begin_ns, timeline.window_end_ns)
    return a_step(spans.total_ns / 1e6, timeline)
