"""The requirements of torch.compile: tools on a device, some of which may be missing, and our own
code."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import torch

F = TypeVar("F", bound=Callable[..., Any])
TRACED = "gpurun_traced"
"""Attribute of functions of ours that dynamo may look into (see `runtime/boot/dynamo_skip.py`)."""

REGIONAL = "regional"
"""The mode that compiles the blocks which a model repeats."""
GRAPH_MODES = ("reduce-overhead", "max-autotune")
"""Modes of torch.compile that record CUDA graphs."""
VOLTA = (7, 0)
"""First compute capability for which Triton makes kernels."""


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
