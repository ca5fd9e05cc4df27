"""Kernels that exchange data between devices, by their own names.

A kernel's own name is the last part of its qualified name, without namespaces, template arguments
and parameters. It counts if a library of communication holds it, or if its words name an exchange.
A word ends at an underscore, or where a small letter meets a capital one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_LIBRARIES = (
    "k?(nccl|oneccl|hccl)",  # NCCL and RCCL (ncclDevKernel_, ncclKernel_), Intel's, Huawei's
    "msccl",  # RCCL's mscclKernel_, and MSCCL++
    "(nv|roc)shmem",  # nvshmemi_, nvshmemx_, rocshmem_
    "deep_ep$",  # DeepEP: intranode, internode, internode_ll
    "k?userbuffers_",  # Transformer Engine and TensorRT-LLM, userbuffers.cu
    "c10d$",  # torch, CUDASymmetricMemory.cu and nvshmem_extension.cu
    "quickreduce$",  # vLLM and SGLang, quick_all_reduce.cuh
    "mori$",  # MORI, dispatch_combine
    "(dispatch|combine)Kernel$",  # pplx-kernels, whole names
)
"""Beginnings of the namespaces of libraries of communication, or of the names of their kernels."""
_LIBRARY = re.compile("|".join(_LIBRARIES))
_EXCHANGE = re.compile(
    r"_(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|a2a|send_?recv|cross_device_reduce"
    r"|(one|two)_?shot_reduce|ep_(dispatch|combine|(device_)?(sync|barrier))|int(er|ra)_?node)v?\d*_"
)
"""Exchanges as words of a name. Broadcast, gather, scatter, dispatch and combine alone are done
inside a device, too."""
_NVSHMEM = re.compile(
    r"_(barrier|sync|quiet|fence|put|get|signal|wait|broadcast|f?collect|alltoall|reduce"
    r"|reducescatter|rdxn)\d*_(\w+_)?on_stream_"
)
"""NVSHMEM's own kernels: barrier_on_stream_kernel, rdxn_float_sum_on_stream_kernel."""
_INSIDE_DEVICE = re.compile(
    r"_(warp|block|cta|cluster|thread|wave|triton|embedding|gemm|gemv|matmul|attention)_"
)
"""Words of kernels that compute, whatever else their name says: all threads of a block reduce, or
a product that waits for its operands. Those of Inductor begin with `triton` and list operators."""
_TORCH = ("at", "native")
_ANONYMOUS = re.compile(r"\(anonymous namespace\)|\{anonymous\}")
_WORD_ENDS = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_LENGTH = re.compile(r"L?(\d+)")


def exchanges_data(name: str) -> bool:
    """True if a kernel of this name exchanges data between devices."""
    parts = qualified_name(name)
    if any(map(_LIBRARY.match, parts)):
        return True
    words = _words(parts[-1:])
    if _NVSHMEM.match(words):
        return True
    computes = parts[:2] == [*_TORCH] or _INSIDE_DEVICE.search(words)
    return not computes and _EXCHANGE.search(_words(parts[-2:])) is not None


def _words(parts: Sequence[str]) -> str:
    """ "_hybrid_ep_dispatch_kernel_"."""
    return f"_{_WORD_ENDS.sub('_', '_'.join(parts)).lower()}_"


def qualified_name(name: str) -> list[str]:
    """A kernel's namespaces and last its own name, of a demangled or mangled name."""
    if name.startswith("_Z"):
        return _mangled_parts(name)
    kept, depth = [], 0
    for character in _ANONYMOUS.sub("", name):
        if depth == 0 and character in "([":
            break
        depth += (character == "<") - (character == ">" and depth > 0)
        if depth == 0 and character != ">":
            kept.append(character)
    last_word = "".join(kept).split()[-1:]
    return [part for part in "".join(last_word).split("::") if part] or [""]


def _mangled_parts(name: str) -> list[str]:
    """The parts of `_ZN4vllm25cross_device_reduce_2stageI...`: each stands behind its length."""
    place, parts = 3 if name.startswith("_ZN") else 2, []
    while (length := _LENGTH.match(name, place)) is not None:
        place = length.end() + int(length.group(1))
        parts.append(name[length.end() : place])
    return parts or [""]
