"""Divides the GPUs and the cores of a machine among its ranks."""

from __future__ import annotations

import shutil

from gpurun.errors import GpurunError


def threads_for(ranks: int, cores: float | None = None) -> int:
    """Threads an operator may use in each of `ranks` processes, for OMP_NUM_THREADS: at least 1.

    The cores of the affinity mask, within the cgroup's quota, divided among them. (torchrun sets 1
    whatever the machine has; where the user asked for ranks in its flags, its value holds.)
    `cores`: how many there are, by default what this process may use.
    """
    if cores is None:
        from gpurun.measure.machine import available_cores

        cores = available_cores()
    return max(1, int(cores // max(ranks, 1)))


def check_devices(ranks: int, oversubscribe: bool, gpus: tuple[str, ...] | None = None) -> int:
    """The devices for `ranks` processes, one each: how many GPUs, 0 where they run on the CPU.

    `GpurunError` where there are fewer GPUs than ranks (without a GPU, fewer cores), unless
    `oversubscribe`. `gpus`: names of those there are, by default the visible ones.
    """
    if gpus is None:
        from gpurun.measure.nvml import gpu_hardware

        gpus = tuple(gpu.name for gpu in gpu_hardware())
    room = len(gpus) or threads_for(1)
    if ranks > room and not oversubscribe:
        kind = f"GPU ({gpus[0]})" if gpus else "core and no GPU"
        if room > 1:
            kind = f"GPUs ({', '.join(dict.fromkeys(gpus))})" if gpus else "cores and no GPU"
        raise GpurunError(
            f"{ranks} ranks were asked for, and there {'is' if room == 1 else 'are'} {room} {kind}",
            f"ask for at most {room}, or add --oversubscribe to let ranks share them",
        )
    return len(gpus)


def shared_gpus(ranks: int, gpus: int) -> int:
    """The number of GPUs that `ranks` processes share; 0 if each has its own, or there are none."""
    return gpus if ranks > gpus else 0


def check_numa_binding(has_gpu: bool) -> None:
    """`GpurunError` where torchrun's `--numa-binding` can do nothing, and torch prints a traceback.

    `has_gpu`: whether torch sees one. It binds each rank to cores near its GPU, by numactl; the
    knob `cpu_affinity` then leaves the rank's cores alone.
    """
    if not has_gpu:
        raise GpurunError(
            "--numa-binding binds each rank to the cores near its GPU, and torch sees no GPU",
            "drop it",
        )
    if shutil.which("numactl") is None:
        raise GpurunError("--numa-binding needs numactl, which is not on the PATH", "install it")
