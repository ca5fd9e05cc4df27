"""Samples that the launcher takes beside the script: `samples.jsonl`, one object a line.

Each line is `{"event": <kind>, ...fields}`. Times are wall-clock nanoseconds, because the launcher
and the script's processes share that clock alone.
"""

from __future__ import annotations

from typing import ClassVar

from gpurun.records.record import record

SAMPLES_SCHEMA = "gpurun/samples@1"
POWER_CAP = "software power cap"
"""The throttle reason of a GPU that takes all the power it may."""


@record
class HostSample:
    """The script's process tree: CPU seconds used since it started, memory held now.

    `others_cpu_seconds`: what all processes but these and the launcher have used of our cores since
    boot. None unless the tree was listed for this very sample, since a child that is not listed yet
    would count among the others. `read_bytes`: what the tree has read from storage since its start;
    files that the system holds in memory are not read again. None where the system does not say.
    """

    kind: ClassVar[str] = "host"
    unix_time_ns: int
    cpu_seconds: float
    rss_bytes: int
    processes: int
    others_cpu_seconds: float | None = None
    read_bytes: int | None = None


@record
class DeviceSample:
    """One GPU. `energy_joules` counts since the driver was loaded; the activities are means since
    the sample before (NVML GPM), or of the last second (DCGM). `cuda_index` is the number under
    which the script sees the device, None where the order is not certain. None: the device does
    not tell.
    """

    kind: ClassVar[str] = "device"
    unix_time_ns: int
    uuid: str
    name: str
    cuda_index: int | None
    utilization_percent: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    power_watts: float | None
    energy_joules: float | None
    temperature_celsius: float | None
    sm_clock_mhz: float | None
    throttle_reasons: tuple[str, ...]
    foreign_processes: int | None
    graphics_activity_percent: float | None
    sm_activity_percent: float | None
    tensor_activity_percent: float | None
    dram_activity_percent: float | None
    refused: tuple[str, ...] = ()
    """Figures that NVML does not tell here though it has them, each with its reason."""
    activity_source: str = "gpm"
    """The source of the activities, if there are any: "gpm" or "dcgm"."""
    uncorrected_ecc_errors: int | None = None
    """Since the driver was loaded; None where the memory has no such correction."""
    xids: tuple[int, ...] | None = None
    """Numbers of the driver's errors since the sample before; None where it reports none."""
