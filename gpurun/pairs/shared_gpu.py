"""Checks whether two sides can share a GPU in turns."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from gpurun.measure.nvml import exclusive_gpu

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
