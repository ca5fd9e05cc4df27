"""GPUs by NVML: what they are, and what they are doing. The only user of pynvml.

Where NVML is absent there are no devices; a figure that a device does not tell is None.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpurun.records.samples import DeviceSample

THROTTLE_REASONS = {
    0x04: "software power cap",
    0x08: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
}
"""Bits of NVML's clock event reasons; being idle and clocks set on purpose are none."""

GPM_METRICS = {"graphics": 1, "sm": 2, "tensor": 5, "dram": 10}
"""NVML_GPM_METRIC_GRAPHICS_UTIL, _SM_UTIL, _ANY_TENSOR_UTIL and _DRAM_BW_UTIL, in percent."""


@dataclass(frozen=True)
class Gpu:
    """One GPU that the script can see. `cuda_index` is None where CUDA's order is not certain."""

    handle: Any
    uuid: str
    name: str
    cuda_index: int | None
    memory_bytes: int | None
    compute_capability: tuple[int, int] | None


def gpu_hardware() -> tuple[Gpu, ...]:
    """The GPUs visible under CUDA_VISIBLE_DEVICES; their handles are not valid any more."""
    nvml = _started_nvml()
    if nvml is None:
        return ()
    try:
        return tuple(_visible_gpus(nvml))
    finally:
        nvml.nvmlShutdown()


def driver_version() -> str | None:
    """Version of the GPU driver, None without one."""
    nvml = _started_nvml()
    if nvml is None:
        return None
    try:
        return _text(_ask(nvml.nvmlSystemGetDriverVersion))
    finally:
        nvml.nvmlShutdown()


class DeviceSampler:
    """Samples the visible GPUs, from the launcher's process."""

    def __init__(self) -> None:
        self._nvml = _started_nvml()
        self._gpus = _visible_gpus(self._nvml) if self._nvml is not None else []
        self._activity = {g.uuid: _Activity(self._nvml, g.handle) for g in self._gpus}
        self._strangers: dict[str, set[int]] = {}

    def sample(self, own_pids: set[int]) -> list[DeviceSample]:
        """One sample a GPU; `own_pids` are the processes that belong to the script."""
        return [self._one(gpu, own_pids) for gpu in self._gpus]

    def close(self) -> None:
        """Release NVML."""
        for activity in self._activity.values():
            activity.close()
        if self._nvml is not None:
            self._nvml.nvmlShutdown()
        self._nvml, self._gpus = None, []

    def _one(self, gpu: Gpu, own_pids: set[int]) -> DeviceSample:
        nvml: Any = self._nvml

        def ask(query: str, *arguments: Any) -> Any:
            return _ask(getattr(nvml, query, None), gpu.handle, *arguments)

        memory = ask("nvmlDeviceGetMemoryInfo")
        utilization = ask("nvmlDeviceGetUtilizationRates")
        activity = self._activity[gpu.uuid].since_last()
        return DeviceSample(
            unix_time_ns=time.time_ns(),
            uuid=gpu.uuid,
            name=gpu.name,
            cuda_index=gpu.cuda_index,
            utilization_percent=None if utilization is None else float(utilization.gpu),
            memory_used_bytes=None if memory is None else int(memory.used),
            memory_total_bytes=None if memory is None else int(memory.total),
            power_watts=_scaled(ask("nvmlDeviceGetPowerUsage"), 1e-3),
            energy_joules=_scaled(ask("nvmlDeviceGetTotalEnergyConsumption"), 1e-3),
            temperature_celsius=_scaled(ask("nvmlDeviceGetTemperature", 0), 1.0),
            sm_clock_mhz=_scaled(ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM), 1.0),
            throttle_reasons=_reasons(ask("nvmlDeviceGetCurrentClocksThrottleReasons")),
            foreign_processes=self._foreign(
                gpu.uuid, ask("nvmlDeviceGetComputeRunningProcesses"), own_pids
            ),
            graphics_activity_percent=activity.get("graphics"),
            sm_activity_percent=activity.get("sm"),
            tensor_activity_percent=activity.get("tensor"),
            dram_activity_percent=activity.get("dram"),
        )

    def _foreign(self, uuid: str, running: Any, own_pids: set[int]) -> int | None:
        """How many others compute on a GPU.

        In a container NVML tells process ids of the host, so that our own look foreign. Those seen
        at the first sample, before the script can have opened the device, are strangers for sure.
        """
        if running is None:
            return None
        pids = {process.pid for process in running}
        if pids & own_pids:
            return len(pids - own_pids)
        return len(pids & self._strangers.setdefault(uuid, pids))


class _Activity:
    """GPM activities of one GPU (Hopper and later): means between two samples of its counters."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml = nvml
        self._handle = handle
        support = _ask(getattr(nvml, "nvmlGpmQueryDeviceSupport", None), handle)
        self._supported = support is not None and bool(support.isSupportedDevice)
        self._before: Any = None
        self._spare: Any = None

    def since_last(self) -> dict[str, float]:
        """Percent by name of `GPM_METRICS`, without those that the device does not tell."""
        if not self._supported:
            return {}
        nvml = self._nvml
        sample = self._spare or _ask(nvml.nvmlGpmSampleAlloc)
        self._spare = None
        try:
            nvml.nvmlGpmSampleGet(self._handle, sample)
        except nvml.NVMLError:
            self._supported = False  # not permitted here
            return {}
        before, self._before, self._spare = self._before, sample, self._before
        return {} if before is None else self._metrics(before, sample)

    def close(self) -> None:
        for sample in (self._before, self._spare):
            if sample is not None:
                _ask(self._nvml.nvmlGpmSampleFree, sample)

    def _metrics(self, before: Any, after: Any) -> dict[str, float]:
        nvml = self._nvml
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(GPM_METRICS)
        request.sample1, request.sample2 = before, after
        for index, metric in enumerate(GPM_METRICS.values()):
            request.metrics[index].metricId = metric
        if _ask(nvml.nvmlGpmMetricsGet, request) is None:
            return {}
        told = zip(GPM_METRICS, request.metrics, strict=False)
        return {name: float(metric.value) for name, metric in told if metric.nvmlReturn == 0}


def _started_nvml() -> Any:
    """The pynvml module with NVML initialised; None where either is absent."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        return None  # no package, no library, no driver or no permission: no devices
    return pynvml


def _visible_gpus(nvml: Any) -> list[Gpu]:
    count = _ask(nvml.nvmlDeviceGetCount) or 0
    handles = [_ask(nvml.nvmlDeviceGetHandleByIndex, i) for i in range(count)]
    found = [_gpu(nvml, handle) for handle in handles if handle is not None]
    order = visible_order([(g.uuid, g.name) for g in found], os.environ)
    return [Gpu(**{**vars(found[position]), "cuda_index": index}) for position, index in order]


def _gpu(nvml: Any, handle: Any) -> Gpu:
    memory = _ask(nvml.nvmlDeviceGetMemoryInfo, handle)
    capability = _ask(nvml.nvmlDeviceGetCudaComputeCapability, handle)
    return Gpu(
        handle=handle,
        uuid=_text(_ask(nvml.nvmlDeviceGetUUID, handle)) or "",
        name=_text(_ask(nvml.nvmlDeviceGetName, handle)) or "GPU",
        cuda_index=None,
        memory_bytes=None if memory is None else int(memory.total),
        compute_capability=None if capability is None else (int(capability[0]), int(capability[1])),
    )


def visible_order(
    gpus: Sequence[tuple[str, str]], environment: Mapping[str, str]
) -> list[tuple[int, int | None]]:
    """Positions of the GPUs (UUID, name) that CUDA shows, each with its CUDA index.

    CUDA sorts the fastest first unless CUDA_DEVICE_ORDER says otherwise, NVML by bus: numbers mean
    the same only among GPUs of one kind. Where they do not, or for MIG parts, every GPU is given
    with an index of None.
    """
    uncertain: list[tuple[int, int | None]] = [(i, None) for i in range(len(gpus))]
    same_order = (
        len({name for _, name in gpus}) <= 1 or environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    )
    listed = environment.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return [(i, i) for i in range(len(gpus))] if same_order else uncertain
    order: list[tuple[int, int | None]] = []
    for word in (w.strip() for w in listed.split(",")):
        if word.startswith("MIG"):
            return uncertain
        if word.startswith("GPU-"):
            position = next((i for i, g in enumerate(gpus) if g[0].startswith(word)), -1)
        elif not same_order:
            return uncertain
        else:
            position = int(word) if word.isdigit() else -1
        if not 0 <= position < len(gpus):
            break  # CUDA, too, ignores what follows a device that is not there
        order.append((position, len(order)))
    return order


def _ask(query: Callable[..., Any] | None, *arguments: Any) -> Any:
    """What NVML answers; None where it or the device does not know."""
    if query is None:
        return None
    try:
        return query(*arguments)
    except Exception:
        return None  # NVMLError, or an old driver's library that lacks the function


def _text(value: str | bytes | None) -> str | None:
    return value.decode() if isinstance(value, bytes) else value


def _scaled(value: Any, factor: float) -> float | None:
    return None if value is None else float(value) * factor


def _reasons(bits: Any) -> tuple[str, ...]:
    return tuple(name for bit, name in THROTTLE_REASONS.items() if bits is not None and bits & bit)
