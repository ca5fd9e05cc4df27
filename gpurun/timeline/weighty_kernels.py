"""Selects the kernels of Nsight Compute that are worth a finding."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.timeline.model import KernelMetrics

SHORT_NS = 10_000
"""A kernel shorter than this cannot fill a device: that is a matter of launches."""
WEIGHT = 0.10
"""Share of the measured kernels' time; a kernel that takes less is not worth a finding."""


def weighty(kernels: Sequence[KernelMetrics]) -> list[KernelMetrics]:
    """Kernels long enough, and with enough of the time, to be worth a change."""
    known = [k for k in kernels if k.duration_ns is not None]
    total = sum(k.duration_ns or 0.0 for k in known)
    return [
        k for k in known if (k.duration_ns or 0.0) >= max(SHORT_NS, WEIGHT * total) and total > 0
    ]
