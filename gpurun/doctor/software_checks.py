"""Checks of software: torch, drivers, profilers and packages."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from gpurun.doctor.driver_probe import NvmlProbe, ProbedMachine, TorchProbe
from gpurun.formatting.number_text import count
from gpurun.measure.resource_use import cpu_build
from gpurun.records.command_reports import Check, State
from gpurun.timeline.report_exports import OPEN_COUNTERS

OLDEST_TORCH = (2, 4)


def software_checks(machine: ProbedMachine) -> Iterable[Check]:
    """All checks of what is installed."""
    yield Check("python", State.OK, platform.python_version())
    yield torch_check(machine)
    yield gpu_check(machine)
    yield compiler_check()
    yield nvml_check(machine)
    yield gpm_check(machine)


def torch_check(machine: ProbedMachine) -> Check:
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


def gpu_check(machine: ProbedMachine) -> Check:
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


def nvml_check(machine: ProbedMachine) -> Check:
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


def gpm_check(machine: ProbedMachine) -> Check:
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


NSYS_SECONDS = 60.0
"""Nsight Systems that takes longer to record nothing does not work."""
NSYS_COST = "`gpurun profile --sources nsys` does not work; torch.profiler's timeline does"
INSTALL_NSYS = "install Nsight Systems and put nsys on PATH"

DCGM_COST = "no activity of SMs, tensor cores and memory: on these GPUs only DCGM measures it"

NOT_USED = {
    "py-spy": "gpurun samples the stack itself (source `host`)",
    "memray": "gpurun does not trace host memory",
}
"""Programs that gpurun does not run, and what it does."""
LINE_PROFILER = "gpurun's samples of the stack name lines too"


def profiling_checks(machine: ProbedMachine) -> Iterable[Check]:
    """All checks of profiling sources but NVML's, which any run uses."""
    yield torch_profiler_check(machine)
    yield nsys_check(machine)
    yield ncu_check(machine)
    yield dcgm_check(machine)
    for tool, instead in NOT_USED.items():
        yield _not_used(tool, shutil.which(tool), instead)
    found = find_spec("line_profiler")
    yield _not_used("line_profiler", None if found is None else "installed", LINE_PROFILER)


def torch_profiler_check(machine: ProbedMachine) -> Check:
    """Kineto: operators on the CPU; kernels and copies where torch is built with CUPTI."""
    what = "torch.profiler"
    if not isinstance(machine.torch, TorchProbe):
        return Check(what, State.MISSING, "no torch", "no timeline of a step", "install torch")
    if machine.torch.profiles_gpu:
        return Check(what, State.OK, "operators, kernels, copies")
    if not machine.gpus:
        return Check(what, State.OK, "operators of the CPU")
    found, cost = "operators of the CPU only", "no timeline of kernels and copies"
    return Check(what, State.LIMITED, found, cost, f"install torch's CUDA build, or {INSTALL_NSYS}")


def nsys_check(machine: ProbedMachine) -> Check:
    """Nsight Systems records an empty program: an installed one may still write no report."""
    path = shutil.which("nsys")
    if path is None:
        if not machine.gpus:
            return Check("nsys", State.UNNEEDED, "not on the PATH; no GPU")
        return Check("nsys", State.MISSING, "not on the PATH", NSYS_COST, INSTALL_NSYS)
    why, todo = nsys_obstacle(path)
    if why:
        return Check("nsys", State.LIMITED, f"{path}: {why}", NSYS_COST, todo)
    return Check("nsys", State.OK, path)


def nsys_obstacle(path: str, seconds: float = NSYS_SECONDS) -> tuple[str, str]:
    """Why Nsight Systems writes no report here, and what to do; two empty texts if it does."""
    with tempfile.TemporaryDirectory() as folder:
        command = [path, "profile", "-t", "nvtx", "-s", "none", "--cpuctxsw=none", "-f", "true"]
        try:
            done = subprocess.run(
                [*command, "-o", f"{folder}/report", "true"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=seconds,
                check=False,
                env={**os.environ, "LC_ALL": "C"},
            )
        except subprocess.TimeoutExpired:
            return f"no report within {seconds:.0f} s", "try `nsys status --environment`"
        except OSError as error:
            return str(error.strerror), INSTALL_NSYS
        written = {file.suffix for file in Path(folder).iterdir()}
    if ".nsys-rep" in written:
        return "", ""
    if ".qdstrm" in written:
        return (
            "it records, but its importer does not start",
            "install the importer's libraries (Debian: libdw1), or Nsight Systems as a package",
        )
    said = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()
    why = said[-1] if said else f"it ended with code {done.returncode}"
    return f"no report: {why}", "try `nsys status --environment`"


def ncu_check(machine: ProbedMachine) -> Check:
    """Nsight Compute, which `gpurun diagnose` needs to open its reports."""
    path = shutil.which("ncu")
    if path is not None:
        return Check("ncu", State.OK, path)
    if not machine.gpus:
        return Check("ncu", State.UNNEEDED, "not on the PATH; no GPU")
    cost = "`gpurun diagnose x.ncu-rep`: no occupancy or warp efficiency of single kernels"
    todo = "install Nsight Compute, or export the report to CSV where ncu is"
    return Check("ncu", State.MISSING, "not on the PATH", cost, todo)


def dcgm_check(machine: ProbedMachine) -> Check:
    """DCGM has the counters that NVML tells of Hopper and later only."""
    path = shutil.which("dcgmi")
    if isinstance(machine.nvml, NvmlProbe) and not machine.nvml.gpm and machine.gpus:
        if path is None:
            todo = "install DCGM and start its host engine (nv-hostengine)"
            return Check("dcgmi", State.MISSING, "not on the PATH", DCGM_COST, todo)
        return Check("dcgmi", State.OK, path)
    return _not_used("dcgmi", path, "gpurun reads the same figures from NVML here")


def _not_used(tool: str, found: str | None, instead: str) -> Check:
    state = State.UNNEEDED if found is None else State.OK
    return Check(tool, state, f"{found or 'not installed'}; {instead}")
