"""GPUs by NVML: what they are, what they are doing, and the links between them.

The only user of pynvml.

Where NVML is absent there are no devices; a figure that a device does not tell is None.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations
from typing import Any

from gpurun.measure.gpu_counters import DcgmCounters, GpmActivity, XidErrors
from gpurun.measure.visible_gpus import Gpu, ask, error_text, text, visible_gpus
from gpurun.records.result import GpuPair, GpuTopology
from gpurun.records.samples import POWER_CAP, DeviceSample

THROTTLE_REASONS = {
    0x04: POWER_CAP,
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of NVML's clock event reasons; being idle and clocks set on purpose are none."""


UNCORRECTED, SINCE_DRIVER_LOAD = 1, 0
"""NVML's numbers of this type and of this count of ECC errors."""
COMPUTE_MODES = {1: "exclusive thread", 2: "prohibited", 3: "exclusive process"}
"""NVML's compute modes but the default, which lets in everybody."""


def gpu_hardware() -> tuple[Gpu, ...]:
    """The GPUs visible under CUDA_VISIBLE_DEVICES; their handles are not valid any more."""
    with _nvml_for_a_moment() as nvml:
        return () if nvml is None else tuple(visible_gpus(nvml))


def gpu_links() -> tuple[tuple[GpuTopology, ...], tuple[GpuPair, ...]]:
    """The visible GPUs with their links and each pair of them, as far as NVML tells."""
    with _nvml_for_a_moment() as nvml:
        return ((), ()) if nvml is None else links(nvml, visible_gpus(nvml))


def exclusive_gpu() -> str:
    """The compute mode of a visible GPU that lets in one process or none, "" if there is none."""
    modes = _asked_of_each("nvmlDeviceGetComputeMode")
    return next((COMPUTE_MODES[mode] for mode in modes if mode in COMPUTE_MODES), "")


def tells_energy() -> bool:
    """True if there is a GPU, and each visible one counts its joules."""
    joules = _asked_of_each("nvmlDeviceGetTotalEnergyConsumption")
    return bool(joules) and None not in joules


def driver_version() -> str | None:
    """Version of the GPU driver, None without one."""
    with _nvml_for_a_moment() as nvml:
        return None if nvml is None else text(ask(nvml.nvmlSystemGetDriverVersion))


class DeviceSampler:
    """Samples the visible GPUs, from the launcher's process."""

    def __init__(self) -> None:
        self._nvml = _started_nvml()
        self._gpus = visible_gpus(self._nvml) if self._nvml is not None else []
        self._activity = {g.uuid: GpmActivity(self._nvml, g.handle) for g in self._gpus}
        self._xids = {g.uuid: XidErrors(self._nvml, g.handle) for g in self._gpus}
        told = all(each.supported for each in self._activity.values())
        self._dcgm = None if told else DcgmCounters()
        self.strangers: dict[str, set[int]] = {}

    @property
    def sees_gpus(self) -> bool:
        """True if any GPU is visible."""
        return bool(self._gpus)

    def look_around(self) -> None:
        """Note who computes on the GPUs before the script can have begun to: these are strangers.

        In a container NVML tells process ids of the host, by which our own look foreign later.
        """
        for gpu in self._gpus:
            running = ask(self._nvml.nvmlDeviceGetComputeRunningProcesses, gpu.handle)
            if running is not None:
                self.strangers[gpu.uuid] = {process.pid for process in running}

    def sample(self, own_pids: set[int]) -> list[DeviceSample]:
        """One sample a GPU; `own_pids` are the processes that belong to the script."""
        return [self._one(gpu, own_pids) for gpu in self._gpus]

    def processes(self) -> dict[str, list[tuple[int, int | None]]]:
        """By UUID of each GPU that tells: (process id, bytes of memory) of who computes on it."""
        told = {
            gpu.uuid: ask(self._nvml.nvmlDeviceGetComputeRunningProcesses, gpu.handle)
            for gpu in self._gpus
        }
        return {
            uuid: [(process.pid, process.usedGpuMemory) for process in running]
            for uuid, running in told.items()
            if running is not None
        }

    def close(self) -> None:
        """Release NVML."""
        for activity in self._activity.values():
            activity.close()
        for xids in self._xids.values():
            xids.close()
        if self._dcgm is not None:
            self._dcgm.close()
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
        self._nvml, self._gpus = None, []

    def _one(self, gpu: Gpu, own_pids: set[int]) -> DeviceSample:
        told = _Questions(self._nvml, gpu.handle)
        memory = told("nvmlDeviceGetMemoryInfo", figure="memory")
        utilization = told("nvmlDeviceGetUtilizationRates", figure="utilisation")
        watts = told("nvmlDeviceGetPowerUsage", figure="power")
        running = told("nvmlDeviceGetComputeRunningProcesses", figure="other processes")
        activity, source = self._activity[gpu.uuid].since_last(), "gpm"
        if not activity and self._dcgm is not None:
            activity, source = self._dcgm.since_last(gpu.uuid), "dcgm"
        why = self._activity[gpu.uuid].refused
        if why is not None:
            told.refused.append(f"activity of its parts: {why}")
        return DeviceSample(
            unix_time_ns=time.time_ns(),
            uuid=gpu.uuid,
            name=gpu.name,
            cuda_index=gpu.cuda_index,
            utilization_percent=None if utilization is None else float(utilization.gpu),
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            power_watts=_scaled(watts, 1e-3),
            energy_joules=_scaled(told("nvmlDeviceGetTotalEnergyConsumption"), 1e-3),
            temperature_celsius=_scaled(told("nvmlDeviceGetTemperature", 0), 1.0),
            sm_clock_mhz=_scaled(told("nvmlDeviceGetClockInfo", told.nvml.NVML_CLOCK_SM), 1.0),
            throttle_reasons=_reasons(told("nvmlDeviceGetCurrentClocksThrottleReasons")),
            foreign_processes=self._foreign(gpu.uuid, running, own_pids),
            graphics_activity_percent=activity.get("graphics"),
            sm_activity_percent=activity.get("sm"),
            tensor_activity_percent=activity.get("tensor"),
            dram_activity_percent=activity.get("dram"),
            uncorrected_ecc_errors=told(
                "nvmlDeviceGetTotalEccErrors", UNCORRECTED, SINCE_DRIVER_LOAD
            ),
            xids=self._xids[gpu.uuid].since_last(),
            refused=tuple(told.refused),
            activity_source=source,
        )

    def _foreign(self, uuid: str, running: Any, own_pids: set[int]) -> int | None:
        """The number of other processes that compute on a GPU.

        If none of ours is among them, NVML may report process ids of the host, and our own look
        foreign. Then only those count that were there at the first call of `look_around` or of
        this.
        """
        if running is None:
            return None
        pids = {process.pid for process in running}
        if pids & own_pids:
            return len(pids - own_pids)
        return len(pids & self.strangers.setdefault(uuid, pids))


class _Questions:
    """Asks NVML of one device. `refused`: named figures that it did not tell, with the reasons."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self.nvml = nvml
        self.refused: list[str] = []
        self._handle = handle

    def __call__(self, query: str, *arguments: Any, figure: str | None = None) -> Any:
        """The answer, None without one."""
        try:
            return getattr(self.nvml, query)(self._handle, *arguments)
        except Exception as error:  # NVMLError, or an old driver's library that lacks the function
            if figure is not None:
                self.refused.append(f"{figure}: {error_text(error)}")
            return None


def _started_nvml() -> Any:
    """The pynvml module with NVML initialised; None where either is absent."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        return None  # no package, no library, no driver or no permission: no devices
    return pynvml


@contextmanager
def _nvml_for_a_moment() -> Iterator[Any]:
    """NVML, and None where there is none; it is closed afterwards."""
    nvml = _started_nvml()
    try:
        yield nvml
    finally:
        if nvml is not None:
            nvml.nvmlShutdown()


def _asked_of_each(query: str) -> list[Any]:
    """The answer of each visible GPU to a query of its handle; None for one that does not tell."""
    with _nvml_for_a_moment() as nvml:
        gpus = [] if nvml is None else visible_gpus(nvml)
        return [ask(getattr(nvml, query, None), gpu.handle) for gpu in gpus]


def _scaled(value: Any, factor: float) -> float | None:
    return None if value is None else float(value) * factor


def _reasons(bits: Any) -> tuple[str, ...]:
    return tuple(name for bit, name in THROTTLE_REASONS.items() if bits is not None and bits & bit)


P2P_READ, P2P_NVLINK = 0, 2
"""nvmlGpuP2PCapsIndex_t; pynvml's own constant for the first is a tuple by mistake."""

PATHS = {
    0: "one board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "host bridge",
    40: "NUMA node",
    50: "across sockets",
}
"""nvmlGpuTopologyLevel_t."""


def links(nvml: Any, gpus: Sequence[Gpu]) -> tuple[tuple[GpuTopology, ...], tuple[GpuPair, ...]]:
    """The topology of each GPU, without the facts from sysfs, and of each pair."""
    places = tuple(_gpu_topology(nvml, gpu) for gpu in gpus)
    pairs = tuple(_pair(nvml, gpus, *pair) for pair in combinations(range(len(gpus)), 2))
    return places, pairs


def _gpu_topology(nvml: Any, gpu: Gpu) -> GpuTopology:
    def told(query: str) -> int | None:
        answer = ask(getattr(nvml, query, None), gpu.handle)
        return None if answer is None else int(answer)

    return GpuTopology(
        index=gpu.cuda_index,
        name=gpu.name,
        bus_id=_bus_id(ask(getattr(nvml, "nvmlDeviceGetPciInfo", None), gpu.handle)),
        numa_node=None,
        pcie_switch=None,
        pcie_width=told("nvmlDeviceGetCurrPcieLinkWidth"),
        pcie_max_width=told("nvmlDeviceGetMaxPcieLinkWidth"),
        nvlinks=_links_up(nvml, gpu.handle),
    )


def _bus_id(info: Any) -> str | None:
    """The address as sysfs writes it: NVML's has eight digits of domain, sysfs' has four."""
    name = None if info is None else text(info.busId)
    return None if name is None else name[-12:].lower()


def _links_up(nvml: Any, handle: Any) -> int | None:
    """NVLinks that are up: 0 for a GPU without any, None where NVML does not tell."""
    query = getattr(nvml, "nvmlDeviceGetNvLinkState", None)
    if query is None:
        return None
    states = [
        ask(query, handle, link) for link in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18))
    ]
    return sum(int(state == 1) for state in states)


def _pair(nvml: Any, gpus: Sequence[Gpu], one: int, other: int) -> GpuPair:
    both = gpus[one].handle, gpus[other].handle
    level = ask(getattr(nvml, "nvmlDeviceGetTopologyCommonAncestor", None), *both)

    def allowed(capability: int) -> bool | None:
        status = ask(getattr(nvml, "nvmlDeviceGetP2PStatus", None), *both, capability)
        return None if status is None else status == 0

    return GpuPair(one, other, PATHS.get(level), allowed(P2P_READ), allowed(P2P_NVLINK))
