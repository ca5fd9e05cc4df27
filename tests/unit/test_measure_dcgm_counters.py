"""Activity of GPUs whose NVML does not tell it, by a `dcgmi` that prints as DCGM's guide shows."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from gpurun.measure.gpu_counters import DcgmCounters, activities, uuids_by_number

DISCOVERY = """\
2 GPUs found.
+--------+----------------------------------------------------------------------+
| GPU ID | Device Information                                                   |
+--------+----------------------------------------------------------------------+
| 0      | Name: NVIDIA A100-SXM4-40GB                                          |
|        | PCI Bus ID: 00000000:07:00.0                                         |
|        | Device UUID: GPU-aaaa                                                |
+--------+----------------------------------------------------------------------+
| 1      | Name: NVIDIA A100-SXM4-40GB                                          |
|        | PCI Bus ID: 00000000:0F:00.0                                         |
|        | Device UUID: GPU-bbbb                                                |
+--------+----------------------------------------------------------------------+
"""
DMON = """\
#Entity   GRACT        SMACT        TENSO        DRAMA
ID
GPU 1     0.500        0.250        N/A          0.125
GPU 0     1.000        0.750        0.500        0.375
"""


@pytest.fixture
def dcgmi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put a program of that name on the PATH, a shell script with this end."""

    def put(end: str) -> None:
        (tmp_path / "discovery").write_text(DISCOVERY)
        (tmp_path / "dmon").write_text(DMON)
        program = tmp_path / "dcgmi"
        program.write_text(f'#!/bin/sh\ncat "{tmp_path}/$1"\n[ "$1" = dmon ] || exit 0\n{end}\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    return put


def known(counters: DcgmCounters, uuid: str, seconds: float = 10.0) -> dict[str, float]:
    end = time.monotonic() + seconds
    while not (found := counters.since_last(uuid)) and time.monotonic() < end:
        time.sleep(0.02)
    return found


def test_each_gpu_has_the_activities_that_it_tells(dcgmi: Callable[[str], None]) -> None:
    dcgmi("exec sleep 600")
    before = set(psutil.Process().children())
    counters = DcgmCounters()
    try:
        assert known(counters, "GPU-aaaa") == {
            "graphics": 100.0, "sm": 75.0, "tensor": 50.0, "dram": 37.5,
        }  # fmt: skip
        assert counters.since_last("GPU-bbbb") == {"graphics": 50.0, "sm": 25.0, "dram": 12.5}
        assert counters.since_last("GPU-cccc") == {}
        (program,) = set(psutil.Process().children()) - before
    finally:
        counters.close()
    assert not program.is_running()


def test_figures_of_a_program_that_has_ended_grow_old(
    dcgmi: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    dcgmi("exit 1")
    counters = DcgmCounters()
    assert known(counters, "GPU-aaaa")
    monkeypatch.setattr("gpurun.measure.gpu_counters.OLD_SECONDS", 0.0)
    assert counters.since_last("GPU-aaaa") == {}
    counters.close()


def test_without_dcgm_nothing_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    counters = DcgmCounters()
    assert counters.since_last("GPU-aaaa") == {}
    counters.close()


def test_columns_are_known_by_their_names_and_odd_values_are_left_out() -> None:
    assert activities(["SMACT", "NEWCO", "GRACT"], ["0.5", "7", "0.25"]) == {
        "sm": 50.0,
        "graphics": 25.0,
    }
    assert activities(["SMACT", "DRAMA"], ["9e18", "nan"]) == {}
    assert uuids_by_number(["nothing of this kind"]) == {}
