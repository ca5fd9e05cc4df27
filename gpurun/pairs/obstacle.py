"""Why two sides cannot be measured as a live pair, told before it is tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpurun.measure.machine import available_memory
from gpurun.measure.nvml import exclusive_gpu
from gpurun.measure.optional_figures import known
from gpurun.records.result import RunResult

SLOW_STEP_SECONDS = 20.0
"""Steps that take longer make turns of minutes."""
MEMORY_SHARE = 0.9
"""The peaks of both sides together may take this part of the memory."""
CONTEXT_BYTES = 1 << 30
"""Bytes of a process on a GPU beside its tensors: context and libraries."""
MPS_FOLDER = "/tmp/nvidia-mps"
MPS_PID = "nvidia-cuda-mps-control.pid"


@dataclass(frozen=True)
class MemoryPeaks:
    """What a launch held at most, in bytes: all its processes, and its allocator on one GPU."""

    host: int = 0
    reserved: int = 0


def live_pair_obstacle(
    results: Sequence[RunResult], sides: Sequence[MemoryPeaks], gpu_bytes: int | None
) -> str:
    """Reason why sides like these cannot take turns, or "".

    `results`: of launches like theirs. `sides`: the peaks of both. `gpu_bytes`: memory of the GPU
    that both share, None without one.
    """
    if any(result.ranks > 1 for result in results):
        return "the script runs in several ranks"
    slowest = max((step.mean for step in known(r.step_time_ms for r in results)), default=0.0)
    if slowest > 1000 * SLOW_STEP_SECONDS:
        return f"a step takes {slowest / 1000:.0f} s"
    on_host = sum(side.host for side in sides)
    on_gpu = sum(side.reserved + CONTEXT_BYTES for side in sides if side.reserved)
    full = on_host > MEMORY_SHARE * available_memory()
    if full or (gpu_bytes is not None and on_gpu > MEMORY_SHARE * gpu_bytes):
        return "both sides together do not fit in memory"
    return ""


def peaks_of(result: RunResult) -> MemoryPeaks:
    """The peaks of one launch; 0 where they were not measured."""
    host = None if result.host is None else result.host.peak_rss_bytes
    return MemoryPeaks(host or 0, result.peak_reserved_bytes or 0)


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
