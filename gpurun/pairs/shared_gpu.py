"""Checks whether two sides can share a GPU in turns, and notes what disturbed them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from gpurun.measure.nvml import exclusive_gpu
from gpurun.measure.optional_figures import known
from gpurun.measure.resource_use import read_samples
from gpurun.records.messages.turns import Turn
from gpurun.records.samples import DeviceSample

MPS_FOLDER = "/tmp/nvidia-mps"
MPS_PID = "nvidia-cuda-mps-control.pid"


def sharing_obstacle(environment: Mapping[str, str]) -> str:
    """Reason why two processes cannot take turns on the visible GPUs, "" if they can."""
    mode = exclusive_gpu()
    if mode:
        return f"the GPU is in {mode} mode, which lets in one process only"
    if _mps_runs(environment):
        return "CUDA's multi-process service (MPS) runs: a frozen client may hold up the others"
    return ""


def _mps_runs(environment: Mapping[str, str]) -> bool:
    if "CUDA_MPS_PIPE_DIRECTORY" in environment:
        return True
    with suppress(OSError):
        pid = (Path(MPS_FOLDER) / MPS_PID).read_text().strip()
        return pid.isdigit() and Path("/proc", pid).exists()
    return False


def shared_gpu_notes(
    run_dirs: Sequence[Path], stretches: tuple[Turn, Turn] | None
) -> tuple[str, ...]:
    """Notes on the GPUs for whoever reads the ratio.

    `stretches`: what each side counted while it had the machine without a break. In turns the side
    that draws less power cools the one that draws more.
    """
    samples = [sample for run_dir in run_dirs for sample in read_samples(run_dir).device]
    found = []
    reasons = sorted({reason for sample in samples for reason in sample.throttle_reasons})
    if reasons and stretches is not None:
        quick, slow = sorted(turn.step_seconds for turn in stretches)
        found.append(
            f"the GPU was slowed down ({', '.join(reasons)}): in {_seconds(stretches)} s without a "
            f"break a step of the slower side took ×{slow / quick:.2f} of the other's"
        )
    others = _foreign_processes(samples)
    if others:
        found.append(f"other processes computed on the GPU: {others}")
    return tuple(found)


def _seconds(stretches: tuple[Turn, Turn]) -> int:
    return math.floor(min(turn.nanoseconds for turn in stretches) / 1e9)


def _foreign_processes(samples: Sequence[DeviceSample]) -> int:
    return max(known(sample.foreign_processes for sample in samples), default=0)
