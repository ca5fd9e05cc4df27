"""Findings: what keeps a training from being faster, with evidence, place, cure and bound."""

from __future__ import annotations

import enum

from gpurun.records.record import record

WARNING, CRITICAL = 0.4, 0.7
"""Severities from which on a finding is a warning, and from which on it is critical."""


class FindingType(enum.Enum):
    """The kinds of bottleneck that gpurun tells apart."""

    DATA_LOADING = "data_loading"
    H2D_COPY = "h2d_copy"
    CPU_GPU_SYNC = "cpu_gpu_sync"
    KERNEL_EFFICIENCY = "kernel_efficiency"
    LAUNCH_BOUND = "launch_bound"
    SMALL_BATCH = "small_batch"
    PRECISION = "precision"
    MEMORY_BANDWIDTH = "memory_bandwidth"
    OCCUPANCY = "occupancy"
    WARP_EFFICIENCY = "warp_efficiency"
    MEMORY_ALLOCATION = "memory_allocation"
    MULTI_GPU_COMM = "multi_gpu_comm"
    LOAD_IMBALANCE = "load_imbalance"
    TOPOLOGY = "topology"
    ENVIRONMENT = "environment"
    HOST_BOUND = "host_bound"
    THROTTLING = "throttling"
    D2H_COPY = "d2h_copy"
    D2D_COPY = "d2d_copy"
    MEMORY_GROWTH = "memory_growth"
    PERIODIC_STEPS = "periodic_steps"
    GARBAGE_COLLECTION = "garbage_collection"
    RECOMPUTATION = "recomputation"
    CHANGING_SHAPES = "changing_shapes"
    PADDING = "padding"
    SHARED_DEVICE = "shared_device"
    DEVICE_ERRORS = "device_errors"
    CPU_GOVERNOR = "cpu_governor"


@record
class EvidenceFigure:
    """One figure that speaks for a finding. The name carries the unit; `_share` is a fraction.

    `source`: where it was measured, for instance "step clock", "Kineto", "NVML" or "ncu".
    """

    name: str
    value: float | int | str
    source: str


@record
class Location:
    """A line of the user's code. `line`: None where only the file or function is known."""

    file: str
    line: int | None
    function: str | None = None


@record
class Finding:
    """One diagnosed bottleneck.

    `severity`: 0 to 1; from 0.4 a warning, above 0.7 critical. `knob`: the knob of `--optimize`
    that would fix it, None without one. `replayed_gain`: the factor of throughput (1.0: none) if
    the cause were gone, by a replay of the timeline: an estimate. None where the replay does not
    match the recording, or cannot show the cause. `gain_upper_bound`: a bound of the factor, where
    nothing was replayed; None where none can be honestly given. Gains never add up.
    `missing_sources`: sources that were not there and would say more.
    """

    type: FindingType
    severity: float
    description: str
    evidence: tuple[EvidenceFigure, ...]
    location: Location | None
    recommendations: tuple[str, ...]
    knob: str | None
    gain_upper_bound: float | None
    missing_sources: tuple[str, ...] = ()
    replayed_gain: float | None = None

    @property
    def level(self) -> str:
        """The word for the severity: "critical", "warning" or "note"."""
        if self.severity > CRITICAL:
            return "critical"
        return "warning" if self.severity >= WARNING else "note"
