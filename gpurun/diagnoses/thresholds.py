"""Severity: by the gain, and for figures without one by thresholds, all of them in one table.

A figure at its warning threshold has severity 0.4, at its critical one 0.7. `[diagnose]` in
gpurun.toml sets any of them: `memory_used = [0.80, 0.95]`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise

from gpurun.errors import GpurunError
from gpurun.records.finding import CRITICAL, WARNING

GAIN_SEVERITIES = ((1.0, 0.0), (1.1, WARNING), (1.4, CRITICAL), (2.0, 1.0))
"""Gains as factors of throughput and their severities; linear between them. Chosen, not fitted."""
FADING = 3.0
"""How fast a figure that is bad when small stops to matter above its warning threshold: at a third
above it is of no interest."""


def gain_severity(gain: float) -> float:
    """0 to 1, by the factor of throughput that a finding's repair gains."""
    for (low, below), (high, above) in pairwise(GAIN_SEVERITIES):
        if gain < high:
            return below + (above - below) * max(gain - low, 0.0) / (high - low)
    return 1.0


@dataclass(frozen=True)
class Threshold:
    """Where a figure becomes a warning and where it is critical. `meaning`: of the figure.

    A critical threshold below the warning one says that small figures are bad.
    """

    warning: float
    critical: float
    meaning: str

    def severity(self, figure: float) -> float:
        """0 to 1: linear up to the critical threshold, then ever slower towards 1."""
        low, high = self.warning, self.critical
        if low <= figure <= high or high <= figure <= low:
            return WARNING + (CRITICAL - WARNING) * (figure - low) / (high - low)
        if low < high:
            if figure < low:
                return WARNING * max(figure, 0.0) / low
            return CRITICAL + (1 - CRITICAL) * (1 - high / figure)
        if figure > low:
            return WARNING * max(1 - FADING * (figure / low - 1), 0.0)
        return CRITICAL + (1 - CRITICAL) * (1 - max(figure, 0.0) / high)


DEFAULTS: dict[str, Threshold] = {
    "sm_activity": Threshold(0.60, 0.40, "SM activity while the device is busy"),
    "small_grid_share": Threshold(0.30, 0.60, "kernels with fewer blocks than SMs, of kernel time"),
    "little_memory": Threshold(0.50, 0.25, "device memory in use, where SMs are idle too"),
    "dram_activity": Threshold(0.80, 0.90, "DRAM bandwidth in use"),
    "sm_throughput": Threshold(0.60, 0.40, "SM throughput of a kernel (ncu)"),
    "bandwidth_kernel": Threshold(0.60, 0.40, "DRAM throughput of a bandwidth-type kernel (ncu)"),
    "occupancy": Threshold(0.30, 0.15, "occupancy of a kernel (ncu)"),
    "warp_efficiency": Threshold(0.80, 0.60, "threads active in a warp (ncu)"),
    "allocator_retries": Threshold(1, 10, "allocations that first failed, in the run"),
    "device_allocations_per_step": Threshold(1, 10, "cudaMalloc and cudaFree a step"),
    "fragmentation": Threshold(0.30, 0.50, "reserved memory that is unusable, of the reserved"),
    "memory_growth": Threshold(0.10, 0.50, "memory gained in the measured steps, of that before"),
    "memory_used": Threshold(0.90, 0.98, "device memory in use"),
    "imbalance": Threshold(0.10, 0.30, "work of the slowest rank over the fastest, less 1"),
    "unexplained_share": Threshold(0.30, 0.60, "step outside data, model and optimizer"),
    "throttled_share": Threshold(0.10, 0.50, "samples with a thermal or power slow-down"),
    "clock_loss": Threshold(0.05, 0.15, "SM clock below its maximum, while throttled"),
}
"""By name, as in gpurun.toml."""


class Thresholds:
    """The table as the user has it."""

    def __init__(self, changed: Mapping[str, tuple[float, float]] | None = None) -> None:
        own = {name: _checked(name, *values) for name, values in (changed or {}).items()}
        self._table = DEFAULTS | own

    def severity(self, name: str, figure: float | None) -> float:
        """The severity of a figure; 0 for one that was not measured."""
        return 0.0 if figure is None else self._table[name].severity(figure)


def _checked(name: str, warning: float, critical: float) -> Threshold:
    if name not in DEFAULTS:
        near = get_close_matches(name, DEFAULTS, n=1)
        todo = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(DEFAULTS)}"
        raise GpurunError(f"[diagnose] has no threshold {name!r}", todo)
    default = DEFAULTS[name]
    rises = default.warning < default.critical
    if warning == critical or (warning < critical) is not rises:
        order = "below" if rises else "above"
        raise GpurunError(
            f"[diagnose] {name}: the warning threshold must be {order} the critical one",
            f"write two numbers, as in {name} = [{default.warning:g}, {default.critical:g}]",
        )
    return Threshold(warning, critical, default.meaning)
