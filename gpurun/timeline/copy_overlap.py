"""Host-to-device copies: how long, from which memory, and hidden behind kernels or not."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.records.profile_figures import CopyFigures
from gpurun.timeline.device_work import DeviceWork, a_step, copies_on, intervals
from gpurun.timeline.model import Copy, CopyKind, Timeline


def copy_figures(timeline: Timeline, work: DeviceWork) -> CopyFigures | None:
    """The figures of the copies; None where no source records copies."""
    if timeline.copies is None:
        return None
    copies = [c for c in copies_on(timeline, work.device) if c.kind is CopyKind.H2D]
    told = all(copy.pageable is not None for copy in copies)
    pageable = [copy for copy in copies if copy.pageable]
    return CopyFigures(
        h2d_share=_share(copies, work),
        exposed_share=_exposed(copies, work),
        pageable_share=_share(pageable, work) if told else None,
        pageable_exposed_share=_exposed(pageable, work) if told else None,
        h2d_bytes_per_step=a_step(sum(copy.bytes for copy in copies), timeline),
        copies_per_step=a_step(len(copies), timeline),
    )


def _share(copies: Sequence[Copy], work: DeviceWork) -> float:
    return work.share(intervals(copies).within(work.begin_ns, work.end_ns).total_ns)


def _exposed(copies: Sequence[Copy], work: DeviceWork) -> float:
    spans = intervals(copies).within(work.begin_ns, work.end_ns)
    return work.share(spans.total_ns - spans.overlap_ns(work.kernels))
