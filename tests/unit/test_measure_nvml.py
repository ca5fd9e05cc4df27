"""The device sampler against a stand-in for NVML that answers as an H200 did."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from gpurun.measure.machine import machine
from gpurun.measure.nvml import DeviceSampler, driver_version


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


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in = StandIn()
    monkeypatch.setitem(sys.modules, "pynvml", stand_in)  # type: ignore[arg-type]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return stand_in


def test_a_sample_has_the_devices_figures_in_our_units(nvml: StandIn) -> None:
    sampler = DeviceSampler()
    (sample,) = sampler.sample(own_pids=set())
    assert (sample.uuid, sample.name, sample.cuda_index) == ("GPU-50f64664", "NVIDIA H200", 0)
    assert sample.power_watts == pytest.approx(689.522)
    assert sample.energy_joules == pytest.approx(2844.91)
    assert sample.sm_clock_mhz == 1680
    assert sample.throttle_reasons == ("software power cap",), "being idle is no reason"


def test_activities_are_told_from_the_second_sample_on_each_if_the_device_does(
    nvml: StandIn,
) -> None:
    sampler = DeviceSampler()
    (first,) = sampler.sample(set())
    assert first.sm_activity_percent is None
    (second,) = sampler.sample(set())
    assert second.sm_activity_percent == 87.9
    assert second.dram_activity_percent == 28.7
    assert second.tensor_activity_percent is None, "NVML returned an error for this one"


def test_a_device_that_refuses_counters_or_a_clock_still_tells_the_rest(nvml: StandIn) -> None:
    nvml.gpm_allowed = nvml.clocks_known = False
    sampler = DeviceSampler()
    (sample,) = sampler.sample(set())
    assert sample.sm_clock_mhz is None
    assert sample.sm_activity_percent is None
    assert sample.utilization_percent == 97


def test_our_own_processes_are_not_foreign(nvml: StandIn) -> None:
    assert DeviceSampler().sample(own_pids={2, 3})[0].foreign_processes == 1
    assert DeviceSampler().sample(own_pids={1, 2})[0].foreign_processes == 0


def test_where_process_ids_are_the_hosts_only_those_there_before_us_are_foreign(
    nvml: StandIn,
) -> None:
    sampler = DeviceSampler()
    assert sampler.sample(own_pids={7})[0].foreign_processes == 2
    nvml.pids = [2, 90001, 90002]  # ours have come, under ids that we do not know
    assert sampler.sample(own_pids={7})[0].foreign_processes == 1


def test_closing_gives_everything_back(nvml: StandIn) -> None:
    sampler = DeviceSampler()
    for _ in range(5):
        sampler.sample(set())
    assert nvml.gpm_samples == 2, "two samples are used in turn"
    sampler.close()
    assert (nvml.gpm_samples, nvml.open) == (0, 0)
    assert sampler.sample(set()) == []


def test_the_machine_has_its_gpus(nvml: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    here = machine()
    assert here.gpus == ("NVIDIA H200",)
    assert here.gpu_memory_bytes == 150754820096
    assert here.compute_capability == (9, 0)
    assert driver_version() == "580.159.04"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert machine().gpus == ()
    assert nvml.open == 0


def test_without_nvml_there_are_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    sampler = DeviceSampler()
    assert sampler.sample(set()) == []
    sampler.close()
    assert driver_version() is None
