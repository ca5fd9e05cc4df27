"""The requirements of settings: tensor cores of a kind, tools to compile, marked code of ours."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch


F = TypeVar("F", bound=Callable[..., Any])
TRACED = "gpurun_traced"
"""Attribute of functions of ours that dynamo may look into (see `runtime.boot.install_hooks`)."""

REGIONAL = "regional"
"""The mode that compiles the blocks which a model repeats."""
GRAPH_MODES = ("reduce-overhead", "max-autotune")
"""Modes of torch.compile that record CUDA graphs."""


def missing_tool(device: str, capability: tuple[int, int] | None) -> str | None:
    """Why nothing can be compiled for `device`, None if it can.

    `capability`: the GPU's compute capability, None where it is not known. Triton builds the host's
    side of a kernel with the C compiler when the kernel is first launched.
    """
    if device != "cuda":
        compiler = _word("CXX", "g++")
        return None if shutil.which(compiler) else f"there is no C++ compiler ({compiler})"
    if capability is not None and capability < VOLTA:
        has = ".".join(map(str, capability))
        return f"Triton makes no kernels for this GPU (compute capability {has}, 7.0 is needed)"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    compilers = [_word("CC", "gcc"), *([] if os.environ.get("CC") else ["clang"])]
    if not any(map(shutil.which, compilers)):
        return f"there is no C compiler ({' or '.join(compilers)}), which Triton needs"
    return None


def missing_on(device: torch.device) -> str | None:
    """The same for a device of torch."""
    import torch

    cuda = device.type == "cuda"
    return missing_tool(device.type, torch.cuda.get_device_capability(device) if cuda else None)


def traced(function: F) -> F:
    """Mark a function of ours that is there to be compiled: dynamo is kept off all others."""
    setattr(function, TRACED, True)
    return function


def _word(variable: str, default: str) -> str:
    return (os.environ.get(variable, "").split() or [default])[0]


VOLTA = (7, 0)
"""First compute capability with tensor cores, which take float16 alone, and for which Triton makes
kernels."""
AMPERE = (8, 0)
"""First compute capability whose tensor cores take bfloat16 and TF32."""
NATIVE_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}
"""Flags of /proc/cpuinfo (the last is Arm's) of processors that compute in bfloat16."""


def is_ampere(capability: tuple[int, int] | None) -> bool:
    """True for compute capability 8.0 or later; False if it is unknown."""
    return capability is not None and capability >= AMPERE


def is_float16_only(capability: tuple[int, int] | None) -> bool:
    """True if tensor cores of this compute capability take float16 and no wider range."""
    return capability is not None and VOLTA <= capability < AMPERE


def native_on_cpu(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """True if this machine's processor computes in bfloat16."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return False
    flags = next((x for x in lines if x.lower().startswith(("flags", "features"))), "")
    return not NATIVE_FLAGS.isdisjoint(flags.split())
