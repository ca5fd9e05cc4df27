"""Checks of what is installed: python, torch, compiler, drivers' libraries, profilers."""

from __future__ import annotations

import os
import platform
import shutil
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from gpurun.doctor.driver_probe import Machine, NvmlProbe
from gpurun.formatting.number_text import count
from gpurun.measure.gpu_notes import cpu_build
from gpurun.records.doctor import Check, State
from gpurun.timeline.report_exports import OPEN_COUNTERS

OLDEST_TORCH = (2, 4)


def software_checks(machine: Machine) -> Iterable[Check]:
    """All checks of what is installed."""
    yield Check("python", State.OK, platform.python_version())
    yield torch_check(machine)
    yield gpu_check(machine)
    yield compiler_check()
    yield nvml_check(machine)
    yield gpm_check(machine)


def torch_check(machine: Machine) -> Check:
    """torch, and whether its build can drive the GPUs that are here."""
    torch = machine.torch
    if isinstance(torch, str):
        return Check("torch", State.MISSING, torch, "training scripts do not run")
    found = f"{torch.version}, {f'CUDA {torch.cuda_build}' if torch.cuda_build else 'CPU build'}"
    if _version(torch.version) < OLDEST_TORCH:
        return Check("torch", State.LIMITED, found, "older than 2.4: knobs may be skipped")
    if machine.gpus and not torch.cuda_build:
        cost = cpu_build(machine.gpus[0])
        return Check("torch", State.LIMITED, found, cost, "install torch's CUDA build")
    if machine.gpus and not torch.cuda_devices:
        cost = "the GPU stays idle: driver too old for this build, or CUDA_VISIBLE_DEVICES hides it"
        return Check("torch", State.LIMITED, found, cost)
    return Check("torch", State.OK, found)


def gpu_check(machine: Machine) -> Check:
    """The GPUs that the driver shows."""
    if not machine.gpus:
        return Check("GPU", State.MISSING, "none", "everything runs and is measured on the CPU")
    kinds = dict.fromkeys(machine.gpus)
    return Check("GPU", State.OK, ", ".join(f"{machine.gpus.count(k)} × {k}" for k in kinds))


def compiler_check() -> Check:
    """A C++ compiler and python's headers, which torch.compile needs."""
    cost = "torch.compile is not tried"
    names = [os.environ.get("CXX", ""), "g++", "clang++", "gcc", "cl"]
    compiler = next((path for name in names if name and (path := shutil.which(name))), None)
    if compiler is None:
        return Check("compiler", State.MISSING, "no C++ compiler", cost, "install g++")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        todo = "install python's headers (Debian: python3-dev)"
        return Check("compiler", State.MISSING, f"{compiler}, but no Python.h", cost, todo)
    return Check("compiler", State.OK, compiler)


def nvml_check(machine: Machine) -> Check:
    """The driver's own figures: utilisation, memory, power."""
    if isinstance(machine.nvml, NvmlProbe):
        found = count(len(machine.nvml.devices), "device")
        if not machine.nvml.sliced:
            return Check("NVML", State.OK, found)
        cost = "no utilisation, power or temperature of a slice"
        return Check("NVML", State.LIMITED, f"{found}, {machine.nvml.sliced} in MIG slices", cost)
    if not machine.gpus:
        return Check("NVML", State.UNNEEDED, "no GPU")
    cost = "no utilisation, memory, power or temperature of the GPU"
    todo = "see whether nvidia-smi runs here; a container needs `--gpus all`"
    return Check("NVML", State.MISSING, machine.nvml, cost, todo)


def gpm_check(machine: Machine) -> Check:
    """SM, tensor-core and DRAM activity, from Hopper on."""
    what = "GPM activity"
    cost = "no SM, tensor-core or DRAM activity; NVML's coarse utilisation stands in"
    if isinstance(machine.nvml, NvmlProbe) and machine.nvml.gpm:
        refused = machine.nvml.gpm_refused
        if refused:
            return Check(what, State.LIMITED, f"refused: {refused}", cost, OPEN_COUNTERS)
        return Check(what, State.OK, "supported")
    if not machine.gpus:
        return Check(what, State.UNNEEDED, "no GPU")
    return Check(what, State.LIMITED, "not supported", cost)


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".")[:2] if part.isdigit())
