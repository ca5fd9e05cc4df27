"""Waits of the host for the device, in sum and by line of the script."""

from __future__ import annotations

from collections import defaultdict

from gpurun.records.profile_figures import SyncFigures
from gpurun.timeline.device_work import a_step, intervals
from gpurun.timeline.model import MODEL_PHASES, Timeline


def sync_figures(timeline: Timeline) -> SyncFigures | None:
    """The figures of the waits; None where no source records them."""
    if timeline.syncs is None or timeline.window_ns <= 0:
        return None
    begin, end = timeline.window_begin_ns, timeline.window_end_ns
    waiting = intervals(timeline.syncs).within(begin, end)
    parts = intervals([r for r in timeline.ranges or () if r.name in MODEL_PHASES])
    inside = parts.covered(waiting.start, waiting.end).sum() if len(parts) else 0
    lines: dict[str, int] = defaultdict(int)
    for sync in timeline.syncs:
        if sync.location is not None:
            lines[sync.location] += sync.end_ns - sync.begin_ns
    ranked = sorted(lines.items(), key=lambda item: -item[1])
    return SyncFigures(
        share=waiting.total_ns / timeline.window_ns,
        outside_share=float(waiting.total_ns - inside) / timeline.window_ns,
        per_step=a_step(len(timeline.syncs), timeline),
        lines=tuple((line, wait / timeline.window_ns) for line, wait in ranked),
    )
