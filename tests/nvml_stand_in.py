"""A stand-in for NVML that answers as an H200 did."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any


class NVMLError(Exception):
    pass


class StandIn:
    """The functions of pynvml that are asked, for one H200."""

    NVMLError = NVMLError
    NVML_CLOCK_SM = 1
    NVML_GPM_METRICS_GET_VERSION = 1

    def __init__(self) -> None:
        self.open = 0
        self.pids = [1, 2]
        self.gpm_allowed = True
        self.metric_values = {1: 96.3, 2: 87.9, 5: 59.9, 10: 28.7}
        self.metric_returns = {1: 0, 2: 0, 5: 3, 10: 0}
        self.clocks_known = True
        self.gpm_samples = 0
        self.compute_mode = 0
        self.xids: list[int] = []

    def nvmlDeviceGetComputeMode(self, handle: str) -> int:
        return self.compute_mode

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.04"

    def nvmlDeviceGetCount(self) -> int:
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return f"handle {index}"

    def nvmlDeviceGetUUID(self, handle: str) -> bytes:
        return b"GPU-50f64664"

    def nvmlDeviceGetName(self, handle: str) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetCudaComputeCapability(self, handle: str) -> tuple[int, int]:
        return 9, 0

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        return SimpleNamespace(used=3514695680, total=150754820096)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        return SimpleNamespace(gpu=97, memory=30)

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        return 689522

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        return 2844910

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        return 60

    def nvmlDeviceGetClockInfo(self, handle: str, clock: int) -> int:
        if not self.clocks_known:
            raise NVMLError("not supported")
        return 1680

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return 0x01 | 0x04

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[Any]:
        return [SimpleNamespace(pid=pid) for pid in self.pids]

    def nvmlEventSetCreate(self) -> list[int]:
        return []

    def nvmlDeviceRegisterEvents(self, handle: str, kinds: int, events: list[int]) -> None:
        assert kinds == 8, "critical XID errors"

    def nvmlEventSetWait_v2(self, events: list[int], milliseconds: int) -> Any:
        if not self.xids:
            raise NVMLError("timeout")
        return SimpleNamespace(eventData=self.xids.pop(0))

    def nvmlEventSetFree(self, events: list[int]) -> None:
        self.xids = []

    def nvmlGpmQueryDeviceSupport(self, handle: str) -> Any:
        return SimpleNamespace(isSupportedDevice=1)

    def nvmlGpmSampleAlloc(self) -> Any:
        self.gpm_samples += 1
        return object()

    def nvmlGpmSampleFree(self, sample: object) -> None:
        self.gpm_samples -= 1

    def nvmlGpmSampleGet(self, handle: str, sample: object) -> None:
        if not self.gpm_allowed:
            raise NVMLError("no permission")

    def c_nvmlGpmMetricsGet_t(self) -> Any:
        metrics = [SimpleNamespace(metricId=0, nvmlReturn=1, value=0.0) for _ in range(8)]
        return SimpleNamespace(version=0, numMetrics=0, sample1=None, sample2=None, metrics=metrics)

    def nvmlGpmMetricsGet(self, request: Any) -> Any:
        assert request.sample1 is not None
        assert request.sample1 is not request.sample2
        for metric in request.metrics[: request.numMetrics]:
            metric.nvmlReturn = self.metric_returns[metric.metricId]
            metric.value = self.metric_values[metric.metricId]
        return request
