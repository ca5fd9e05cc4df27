"""Asks torch and NVML about this machine, each in a child process.

The child is killed when it takes too long: a broken driver hangs, it does not fail.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gpurun.records.codec import RecordError, from_json

T = TypeVar("T")

PROBE_SECONDS = 60.0

TORCH_PROGRAM = """
import json, torch
from torch.profiler import ProfilerActivity, supported_activities
print(json.dumps({
    "version": torch.__version__,
    "cuda_build": torch.version.cuda or (torch.version.hip and "ROCm " + torch.version.hip),
    "cuda_devices": torch.cuda.device_count() if torch.cuda.is_available() else 0,
    "profiles_gpu": ProfilerActivity.CUDA in supported_activities(),
}))
"""

NVML_PROGRAM = """
import json, pynvml
pynvml.nvmlInit()
handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
def has_gpm(handle):
    try:
        return bool(pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
    except (AttributeError, pynvml.NVMLError):
        return False
def gpm_refusal(handle):
    try:
        sample = pynvml.nvmlGpmSampleAlloc()
        try:
            pynvml.nvmlGpmSampleGet(handle, sample)
        finally:
            pynvml.nvmlGpmSampleFree(sample)
    except pynvml.NVMLError as error:
        return str(error)
    return ""
def is_sliced(handle):
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    except (AttributeError, pynvml.NVMLError):
        return False
names = [pynvml.nvmlDeviceGetName(h) for h in handles]
print(json.dumps({
    "devices": [n.decode() if isinstance(n, bytes) else n for n in names],
    "gpm": bool(handles) and all(has_gpm(h) for h in handles),
    "gpm_refused": next((why for h in handles if has_gpm(h) and (why := gpm_refusal(h))), ""),
    "sliced": sum(map(is_sliced, handles)),
}))
"""


@dataclass(frozen=True)
class TorchProbe:
    """torch as installed. `cuda_build`: the toolkit it was built for, None for a CPU build.

    `profiles_gpu`: torch.profiler can record kernels and copies.
    """

    version: str
    cuda_build: str | None
    cuda_devices: int
    profiles_gpu: bool = False


@dataclass(frozen=True)
class NvmlProbe:
    """The driver's devices; `gpm`: whether all of them tell SM and tensor-core activity.

    `gpm_refused`: why we are not told it; `sliced`: how many devices are cut into slices (MIG).
    """

    devices: tuple[str, ...]
    gpm: bool
    gpm_refused: str = ""
    sliced: int = 0


@dataclass(frozen=True)
class ProbedMachine:
    """The results of the probes; a string is the reason why one has no result.

    `gpus` are the devices that the kernel driver shows, whatever torch and NVML say.
    """

    torch: TorchProbe | str
    nvml: NvmlProbe | str
    gpus: tuple[str, ...]


def probe() -> ProbedMachine:
    """Ask torch and NVML, each in a child process."""
    nvml = answer_of(NvmlProbe, NVML_PROGRAM)
    named = nvml.devices if isinstance(nvml, NvmlProbe) else driver_gpus()
    return ProbedMachine(answer_of(TorchProbe, TORCH_PROGRAM), nvml, named)


def driver_gpus(folder: Path = Path("/proc/driver/nvidia/gpus")) -> tuple[str, ...]:
    """Model names of the GPUs that the NVIDIA kernel driver lists."""
    names = []
    for file in sorted(folder.glob("*/information")):
        for line in file.read_text().splitlines():
            if line.startswith("Model:"):
                names.append(line.partition(":")[2].strip())
    return tuple(names)


def answer_of(kind: type[T], program: str, seconds: float = PROBE_SECONDS) -> T | str:
    """The record that a program prints, run by a child; a text is the reason why there is none."""
    try:
        child = subprocess.run(
            [sys.executable, "-c", program],
            cwd=sys.prefix,  # `-c` imports from the current folder, where a torch.py may lie
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {seconds:.0f} s"
    if child.returncode != 0:
        lines = child.stderr.strip().splitlines()
        return lines[-1] if lines else f"the probe ended with code {child.returncode}"
    try:
        return from_json(kind, json.loads(child.stdout.splitlines()[-1]))
    except (ValueError, IndexError, RecordError) as error:
        return f"the probe's answer is unreadable: {error}"
