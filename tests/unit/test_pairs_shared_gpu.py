"""What two sides that share a GPU must know of it, from samples as a launcher records them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpurun.measure.resource_use import SAMPLES_FILE
from gpurun.pairs import shared_gpu
from gpurun.pairs.shared_gpu import shared_gpu_notes, sharing_obstacle
from gpurun.records.codec import to_json
from gpurun.records.messages.turns import Turn
from gpurun.records.samples import DeviceSample

SECOND = 1_000_000_000
STRETCHES = (Turn(200, 2 * SECOND), Turn(100, 2 * SECOND))


def sampled(folder: Path, reasons: tuple[str, ...] = (), foreign: int | None = 0) -> Path:
    """A run folder with one sample of an H200."""
    folder.mkdir()
    sample = DeviceSample(
        unix_time_ns=1,
        uuid="GPU-50f64664",
        name="NVIDIA H200",
        cuda_index=0,
        utilization_percent=97.0,
        memory_used_bytes=3514695680,
        memory_total_bytes=150754820096,
        power_watts=689.5,
        energy_joules=2844.9,
        temperature_celsius=60.0,
        sm_clock_mhz=1680.0,
        throttle_reasons=reasons,
        foreign_processes=foreign,
        graphics_activity_percent=None,
        sm_activity_percent=None,
        tensor_activity_percent=None,
        dram_activity_percent=None,
    )
    line = json.dumps({"event": sample.kind, **to_json(sample)})
    (folder / SAMPLES_FILE).write_text(line + "\n")
    return folder


def test_a_quiet_gpu_is_not_worth_a_word(tmp_path: Path) -> None:
    sides = [sampled(tmp_path / "first"), sampled(tmp_path / "second", foreign=None)]
    assert shared_gpu_notes(sides, STRETCHES) == ()


def test_a_throttled_side_is_told_with_the_ratio_without_a_break(tmp_path: Path) -> None:
    sides = [sampled(tmp_path / "first"), sampled(tmp_path / "second", ("software power cap",))]
    (note,) = shared_gpu_notes(sides, STRETCHES)
    assert "software power cap" in note
    assert "×2.00 of the other's" in note


def test_other_processes_on_the_gpu_are_told(tmp_path: Path) -> None:
    sides = [sampled(tmp_path / "first", foreign=2), sampled(tmp_path / "second")]
    assert shared_gpu_notes(sides, STRETCHES) == ("other processes computed on the GPU: 2",)


@pytest.mark.parametrize("mode", ["exclusive process", "prohibited"])
def test_a_gpu_for_one_process_cannot_be_shared(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_gpu, "exclusive_gpu", lambda: mode)
    assert mode in sharing_obstacle({})


def test_a_running_mps_is_an_obstacle_and_a_stale_one_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_gpu, "exclusive_gpu", lambda: "")
    monkeypatch.setattr(shared_gpu, "MPS_FOLDER", str(tmp_path))
    assert sharing_obstacle({}) == ""
    (tmp_path / shared_gpu.MPS_PID).write_text(f"{os.getpid()}\n")
    assert "MPS" in sharing_obstacle({})
    (tmp_path / shared_gpu.MPS_PID).write_text("999999999\n")
    assert sharing_obstacle({}) == ""
    assert "MPS" in sharing_obstacle({"CUDA_MPS_PIPE_DIRECTORY": "/run/mps"})
