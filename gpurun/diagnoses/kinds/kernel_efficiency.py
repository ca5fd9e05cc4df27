"""Kernels run, but do not fill the device."""

from __future__ import annotations

from typing import ClassVar

from gpurun.diagnoses.api import Diagnosis, figure, kernel_figures, percent, roofline_gain
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.diagnoses.thresholds import gain_severity
from gpurun.formatting.kernel_names import short_kernel_name
from gpurun.records.finding import WARNING, Finding, FindingType
from gpurun.records.profile_figures import KernelShare
from gpurun.timeline.model import Group, KernelMetrics

ADVICE = (
    "look at the kernel with Nsight Compute: gpurun profile --sources kineto,ncu",
    "torch.compile fuses small kernels into larger ones",
    "sizes that are multiples of 8 (64 for half precision) fit the device's tiles",
)
WORTH = 0.30
"""Share of the time; kernels that run for less of it do not hold up the step."""


class KernelEfficiency(Diagnosis):
    """Kernels leave much of the device unused while they run.

    Triggered by SM activity below 60 % (critical: 40 %) of the time in which the device is busy, by
    a kernel with SM throughput below 60 % (critical: 40 %; beside a timeline a note, or replayed
    with the kernel at the peak of SMs or memory), or by one kernel outside tensor cores that takes
    more than half of the step (a note beside a replay: nothing says that it could be faster).
    """

    type: ClassVar[FindingType] = FindingType.KERNEL_EFFICIENCY
    sources: ClassVar[tuple[Source, ...]] = (Source.ACTIVITY, Source.TIMELINE, Source.KERNELS)
    thresholds: ClassVar[tuple[str, ...]] = (
        "sm_activity",
        "sm_throughput",
        "one_kernel_share",
    )

    def find(self, evidence: Evidence) -> Finding | None:
        """The device's activity and its longest kernel."""
        busy = busy_share(evidence)
        if busy is not None and busy < WORTH:
            return None
        activity, top = activity_while_busy(evidence), _longest(evidence)
        rate = evidence.thresholds.severity
        by_kernel = rate("one_kernel_share", None if top is None else top.share)
        if evidence.replay is not None or (top is not None and top.tensor_core):
            by_kernel = min(by_kernel, WARNING / 2)  # it is as it should be, for all we know
        by_activity = rate("sm_activity", activity)
        slow, by_counters, replayed = _slowest(evidence)
        severity = max(by_activity, by_kernel, by_counters)
        if slow is not None and by_counters == severity:
            used = percent((slow.sm_percent or 0.0) / 100)
            text = f"SM throughput is {used}: {short_kernel_name(slow.name)}"
        elif by_activity == severity:
            text = f"SMs are active {percent(activity)} of the time in which kernels run"
        else:
            assert top is not None
            text = (
                f"one kernel takes {percent(top.share)} of the step: {short_kernel_name(top.name)}"
            )
        return self.finding(
            evidence,
            severity,
            text,
            [
                *kernel_figures(slow),
                figure("sm_activity_while_busy", activity, Source.ACTIVITY),
                figure("sm_activity", evidence.sm_activity, Source.ACTIVITY),
                figure("longest_kernel", None if top is None else top.name, Source.TIMELINE),
                figure("longest_kernel_share", None if top is None else top.share, Source.TIMELINE),
            ],
            ADVICE if slow is None else ADVICE[1:],
            knob="compile",
            replayed=replayed if slow is not None and by_counters == severity else None,
        )


def _slowest(evidence: Evidence) -> tuple[KernelMetrics | None, float, float | None]:
    """The kernel with the least SM throughput, how much that matters, and its replayed gain."""
    known = [k for k in evidence.weighty_kernels if k.sm_percent is not None]
    slow = min(known, key=lambda kernel: kernel.sm_percent or 0.0, default=None)
    if slow is None or slow.sm_percent is None:
        return None, 0.0, None
    severity = evidence.thresholds.severity("sm_throughput", slow.sm_percent / 100)
    gain = roofline_gain(evidence, slow) if severity >= WARNING else None
    if gain is not None:
        return slow, gain_severity(gain), gain
    return slow, severity if evidence.counters_alone else min(severity, WARNING / 2), None


def activity_while_busy(evidence: Evidence) -> float | None:
    """SM activity over the time in which kernels run; None where either is not known."""
    activity, busy = evidence.sm_activity, evidence.figures.kernel_share
    busy = busy_share(evidence) if busy is None else busy
    return None if activity is None or not busy else min(activity / busy, 1.0)


def busy_share(evidence: Evidence) -> float | None:
    """Share of the time in which the device has work: by the timeline, else by its counters."""
    if evidence.idle is not None:
        return 1 - evidence.idle.total
    return evidence.activity("graphics_activity_percent")


def _longest(evidence: Evidence) -> KernelShare | None:
    """The longest kernel that computes: an exchange between ranks is a matter of its own."""
    kernels = evidence.figures.top_kernels or ()
    return next((k for k in kernels if k.group != Group.COMMUNICATION.value), None)
