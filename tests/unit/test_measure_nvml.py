"""The device sampler against a stand-in for NVML that answers as an H200 did."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpurun.measure.machine import machine
from gpurun.measure.nvml import DeviceSampler, driver_version, exclusive_gpu
from gpurun.measure.resource_use import read_samples
from gpurun.measure.sampler import RunSampler
from tests.nvml_stand_in import NVMLError, StandIn


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


def test_errors_that_the_driver_reports_are_told_once(nvml: StandIn) -> None:
    sampler = DeviceSampler()
    assert sampler.sample(set())[0].xids == ()
    nvml.xids = [79, 45]
    assert [sampler.sample(set())[0].xids for _ in range(2)] == [(79, 45), ()]


def test_a_driver_without_events_of_errors_tells_none(
    nvml: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> None:
        raise NVMLError("not supported")

    monkeypatch.setattr(nvml, "nvmlDeviceRegisterEvents", refuse)
    assert DeviceSampler().sample(set())[0].xids is None


def test_without_nvml_there_are_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    sampler = DeviceSampler()
    assert sampler.sample(set()) == []
    sampler.close()
    assert driver_version() is None


def test_what_nvml_refuses_is_named_with_its_reason(nvml: StandIn) -> None:
    nvml.gpm_allowed = False
    sampler = DeviceSampler()
    sampler.sample(set())
    (sample,) = sampler.sample(set())
    assert sample.refused == ("activity of its parts: no permission",)
    sampler.close()
    assert nvml.gpm_samples == 0


def test_a_driver_that_gives_no_room_for_counters_costs_only_these(
    nvml: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Any:
        raise OSError("no such symbol")

    monkeypatch.setattr(nvml, "nvmlGpmSampleAlloc", refuse, raising=False)
    (sample,) = DeviceSampler().sample(set())
    assert sample.utilization_percent == 97
    assert sample.refused == ("activity of its parts: no such symbol",)


def test_who_was_there_before_the_launch_is_a_stranger_whoever_comes_first_afterwards(
    nvml: StandIn,
) -> None:
    nvml.pids = [2]
    sampler = DeviceSampler()
    sampler.look_around()
    nvml.pids = [2, 90001]  # the trial, ready to start, was on the GPU before the first sample
    assert sampler.sample(own_pids={7})[0].foreign_processes == 1


def test_a_process_that_waits_beside_the_trial_is_no_stranger(
    nvml: StandIn, tmp_path: Path
) -> None:
    def parent() -> subprocess.Popen[bytes]:
        child = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE)
        children.append(child)
        return child

    children: list[subprocess.Popen[bytes]] = []
    try:
        trial, beside = parent(), parent()
        grandchildren = [int(x.stdout.readline()) for x in (trial, beside) if x.stdout]
        nvml.pids = [trial.pid, beside.pid, *grandchildren]
        sampler = RunSampler(tmp_path, (beside.pid,))
        sampler.tick(trial.pid)
        sampler.close()
        (sample,) = read_samples(tmp_path).device
        assert sample.foreign_processes == 0
    finally:
        for pid in grandchildren:
            os.kill(pid, signal.SIGKILL)
        for child in children:
            child.communicate()


class Sliced(StandIn):
    """An H100 in MIG mode with two slices, which tell their memory and processes and no more."""

    SLICES = ("MIG-1111", "MIG-2222")

    def nvmlDeviceGetMigMode(self, handle: str) -> list[int]:
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: str) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: str, index: int) -> str:
        if index >= len(self.SLICES):
            raise NVMLError("Not Found")
        return self.SLICES[index]

    def nvmlDeviceGetUUID(self, handle: str) -> bytes:
        return handle.encode() if handle in self.SLICES else b"GPU-50f64664"

    def nvmlDeviceGetName(self, handle: str) -> str:
        return "NVIDIA H100 MIG 1g.10gb" if handle in self.SLICES else "NVIDIA H100"

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> Any:
        used, total = (5, 10) if handle in self.SLICES else (50, 80)
        return SimpleNamespace(used=used << 30, total=total << 30)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        raise NVMLError("Not Supported")

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        raise NVMLError("Not Supported")

    def nvmlGpmQueryDeviceSupport(self, handle: str) -> Any:
        raise NVMLError("Invalid Argument")


@pytest.fixture
def sliced(monkeypatch: pytest.MonkeyPatch) -> Sliced:
    stand_in = Sliced()
    monkeypatch.setitem(sys.modules, "pynvml", stand_in)  # type: ignore[arg-type]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return stand_in


@pytest.mark.parametrize(
    ("named", "shown"),
    [
        ("MIG-2222", [("MIG-2222", 0)]),
        ("MIG-2222,MIG-1111", [("MIG-2222", 0), ("MIG-1111", 1)]),
        ("0", [("MIG-1111", 0)]),
        (None, [("MIG-1111", 0)]),
        ("MIG-9999", []),
    ],
)
def test_of_a_gpu_in_slices_the_script_has_those_that_are_named_or_the_first(
    sliced: Sliced,
    monkeypatch: pytest.MonkeyPatch,
    named: str | None,
    shown: list[tuple[str, int]],
) -> None:
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert [(s.uuid, s.cuda_index) for s in DeviceSampler().sample(set())] == shown


def test_a_slice_has_its_own_memory_and_no_figures_of_the_whole_gpu(sliced: Sliced) -> None:
    (sample,) = DeviceSampler().sample(own_pids={1, 2})
    assert sample.memory_total_bytes == 10 << 30
    assert sample.foreign_processes == 0
    assert (sample.utilization_percent, sample.power_watts) == (None, None)
    assert sample.sm_activity_percent is None
    assert sample.refused == ("utilisation: not supported", "power: not supported")
    here = machine()
    assert (here.gpus, here.gpu_memory_bytes) == (("NVIDIA H100 MIG 1g.10gb",), 10 << 30)
    assert here.compute_capability == (9, 0)


def test_a_gpu_for_one_process_is_told(nvml: StandIn) -> None:
    assert exclusive_gpu() == ""
    nvml.compute_mode = 3
    assert exclusive_gpu() == "exclusive process"
    assert nvml.open == 0
