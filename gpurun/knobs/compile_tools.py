"""What torch.compile needs on a device, and what of it is missing here."""

from __future__ import annotations

import importlib.util
import os
import shutil

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


def _word(variable: str, default: str) -> str:
    return (os.environ.get(variable, "").split() or [default])[0]
