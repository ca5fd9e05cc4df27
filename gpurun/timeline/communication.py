"""Collectives: their time, and how much of it no kernel hides."""

from __future__ import annotations

from gpurun.records.profile_figures import CommunicationFigures
from gpurun.timeline.device_work import DeviceWork, a_step, collectives_on
from gpurun.timeline.model import Collective, Timeline


def communication_figures(timeline: Timeline, work: DeviceWork) -> CommunicationFigures | None:
    """The figures of the collectives; None without any: one rank alone exchanges nothing."""
    found = collectives_on(timeline, work.device)
    if not found:
        return None
    exposed = work.collectives.total_ns - work.collectives.overlap_ns(work.kernels)
    sizes = [c.bytes for c in found if isinstance(c, Collective) and c.bytes is not None]
    complete = len(sizes) == len(found)
    return CommunicationFigures(
        share=work.share(work.collectives.total_ns),
        exposed_share=work.share(exposed),
        per_step=a_step(len(found), timeline),
        bytes_per_step=a_step(sum(sizes), timeline) if complete else None,
    )
