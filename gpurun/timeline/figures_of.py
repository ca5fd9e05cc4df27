"""All figures of a timeline. Pure: the same timeline gives the same figures."""

from __future__ import annotations

from dataclasses import replace

from gpurun.records.profile_figures import ProfileFigures
from gpurun.timeline.communication import communication_figures
from gpurun.timeline.copy_overlap import copy_figures
from gpurun.timeline.device_work import a_step, device_work, step_count
from gpurun.timeline.idle_gaps import idle_time
from gpurun.timeline.kernel_time import (
    group_shares,
    precision_figures,
    top_kernels,
    top_operators,
)
from gpurun.timeline.launches import launch_figures
from gpurun.timeline.model import Timeline
from gpurun.timeline.step_parts import step_parts
from gpurun.timeline.sync_waits import sync_figures


def figures_of(timeline: Timeline) -> ProfileFigures:
    """The figures of one rank's window; each is None where its source is not among those there."""
    work = device_work(timeline)
    host = ProfileFigures(
        steps=step_count(timeline),
        step_ms=a_step(timeline.window_ns / 1e6, timeline),
        step_parts=step_parts(timeline),
        syncs=sync_figures(timeline),
        top_operators=top_operators(timeline),
    )
    if work is None:
        return host
    return replace(
        host,
        kernel_share=work.share(work.kernels.total_ns),
        idle=idle_time(timeline, work),
        copies=copy_figures(timeline, work),
        launches=launch_figures(timeline, work),
        precision=precision_figures(timeline, work),
        communication=communication_figures(timeline, work),
        group_shares=group_shares(timeline, work),
        top_kernels=top_kernels(timeline, work),
    )
