"""Selects the kernels of Nsight Compute that are worth a finding."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.timeline.model import KernelMetrics

SHORT_NS = 10_000
"""A kernel shorter than this cannot fill a device: that is a matter of launches."""
WEIGHT = 0.10
"""Share of the measured kernels' time; a kernel that takes less is not worth a finding."""


def weighty(kernels: Sequence[KernelMetrics], least_ns: float = SHORT_NS) -> list[KernelMetrics]:
    """Kernels long enough, and with enough of the time, to be worth a change.

    The length of a kernel that was not measured is no reason to leave it out.
    """
    total = sum(kernel.duration_ns or 0.0 for kernel in kernels)
    least = max(least_ns, WEIGHT * total)
    return [k for k in kernels if k.duration_ns is None or k.duration_ns >= least]
