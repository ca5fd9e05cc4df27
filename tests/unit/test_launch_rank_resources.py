"""Ranks of one machine divide its cores, and do not share a device unless asked to."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpurun.errors import GpurunError
from gpurun.launch.rank_resources import check_devices, check_numa_binding, threads_for

H200 = ("NVIDIA H200",) * 4


@pytest.mark.parametrize(
    ("ranks", "cores", "threads"), [(1, 16, 16), (4, 16, 4), (3, 16, 5), (8, 2, 1), (2, 3.5, 1)]
)
def test_cores_are_divided_among_ranks(ranks: int, cores: float, threads: int) -> None:
    assert threads_for(ranks, cores) == threads


def test_cores_are_those_that_may_be_used() -> None:
    assert 1 <= threads_for(1) <= len(os.sched_getaffinity(0))


def test_a_device_for_each_rank() -> None:
    assert check_devices(4, oversubscribe=False, gpus=H200) == 4


def test_more_ranks_than_devices_are_refused_by_name_unless_asked_for() -> None:
    with pytest.raises(GpurunError, match=r"8 ranks .* are 4 GPUs \(NVIDIA H200\)") as refused:
        check_devices(8, oversubscribe=False, gpus=H200)
    assert "--oversubscribe" in refused.value.todo
    assert check_devices(8, oversubscribe=True, gpus=H200) == 4


def test_without_a_gpu_cores_are_the_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpurun.measure.machine.available_cores", lambda: 2.0)
    assert check_devices(2, oversubscribe=False, gpus=()) == 0
    with pytest.raises(GpurunError, match=r"3 ranks .* 2 cores and no GPU"):
        check_devices(3, oversubscribe=False, gpus=())
    assert check_devices(3, oversubscribe=True, gpus=()) == 0


def test_a_binding_to_cores_near_a_gpu_needs_a_gpu_and_numactl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GpurunError, match="torch sees no GPU"):
        check_numa_binding(has_gpu=False)
    with pytest.raises(GpurunError, match="needs numactl"):
        check_numa_binding(has_gpu=True)
    (tmp_path / "numactl").write_text("#!/bin/sh\n")
    (tmp_path / "numactl").chmod(0o755)
    check_numa_binding(has_gpu=True)
