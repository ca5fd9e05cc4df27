"""What a kernel or an operator does, by its name.

The names are those of torch 2.4 to 2.13, cuBLAS, cuDNN, CUTLASS, Triton and FlashInfer. A name
that fits nothing is `OTHER`; the order of the rules settles names that fit several. Kernels that
exchange data between devices come first.
"""

from __future__ import annotations

import functools
import re

from gpurun.timeline.exchange_kernels import exchanges_data
from gpurun.timeline.model import Group

ON_HOST = ("gloo:", "mpi:", "ucc:")
"""So begin the names of ranges in which torch's process groups exchange data on the host."""

_Rules = tuple[tuple[Group, re.Pattern[str]], ...]


def _rules(*rules: tuple[Group, str]) -> _Rules:
    return tuple((group, re.compile(pattern, re.IGNORECASE)) for group, pattern in rules)


_KERNELS = _rules(
    (Group.OTHER, r"cudnn_?rnn|rnn_?(cell|bias)|lstm_elementwise|gru_elementwise"),  # of cuDNN
    (
        Group.ATTENTION,  # FlashInfer's other kernels have its namespace, too
        r"flash(?!infer)|fmha|sdpa|attention|softmax_warp|(prefill|decode)with\w*kv|mergestates?k",
    ),
    (Group.CONV, r"conv|implicit_gemm|[dw]grad|fprop|winograd|im2col|col2im|nchwtonhwc|nhwcton"),
    (Group.OPTIMIZER, r"multi_tensor_apply|adam|fused_?sgd|adagrad|lamb\w*_kernel"),
    (Group.MATMUL, r"gemm|gemv|nvjet|splitk|matmul|cublas|cutlass|triton_tem_|_mm_|bmm|addmm"),
    (Group.NORM, r"norm|batchnorm|\bbn_|_bn_|rowwisemoments|gammabeta"),
    (Group.REDUCTION, r"reduce|softmax|triton_(red|per)_|nll_loss|argm(ax|in)|cub::|topk|sort"),
    (
        Group.ELEMENTWISE,
        r"elementwise|triton_poi_|fillfunctor|catarray|dropout|copy|memset|index|gather"
        r"|scatter|embedding|pool|upsample|where|distribution",
    ),
)
_OPERATORS = _rules(
    (Group.COMMUNICATION, r"^(nccl|gloo|mpi|ucc):|^_?(c10d|c10d_functional|symm_mem)::"),
    (Group.ATTENTION, r"attention|flash(?!infer)|sdpa"),
    (Group.CONV, r"conv"),
    (Group.OPTIMIZER, r"optimizer|_foreach_|_fused_(adam|sgd)"),
    (Group.MATMUL, r"::(mm|bmm|addmm|addmv|mv|baddbmm|linear|matmul|dot|einsum|mkldnn_linear)\b"),
    (Group.NORM, r"norm"),
    (Group.REDUCTION, r"::(sum|mean|max|min|amax|amin|softmax|_softmax|_?log_softmax|nll|argm)"),
    (
        Group.ELEMENTWISE,
        r"::(add|sub|mul|div|relu|gelu|silu|sigmoid|tanh|threshold|clamp|copy|fill|zero|cat"
        r"|pow|sqrt|exp|log|where|index|gather|scatter|embedding|dropout|_to_copy|max_pool)",
    ),
)
_TENSOR_CORES = re.compile(
    r"tensorop|16816|s1688|1688|884|[hi]mma|w?gmma|tf32|nvjet|xmma.*(bf16|f16)|flash_(fwd|bwd)"
    r"|_bf16.*tensor|mma_sm\d+",
    re.IGNORECASE,
)
_PLAIN_CORES = re.compile(r"simt|ffma|sgemm|dgemm|gemv|convolve_[sd]gemm|f32f32_f32f32", re.I)
ON_TENSOR_CORES = (Group.MATMUL, Group.CONV, Group.ATTENTION)
"""Kinds of work that tensor cores do."""
_UNTOLD = (Group.OTHER, Group.COMMUNICATION)
MOST_READ = 4096
"""Characters of a name that are looked at: those of CUTLASS have 3,000."""


@functools.lru_cache(maxsize=65536)
def kernel_group(name: str) -> Group:
    """The group of a kernel of the device, by its demangled name."""
    if exchanges_data(name[:MOST_READ]):
        return Group.COMMUNICATION
    return _first(_KERNELS, name)


@functools.lru_cache(maxsize=65536)
def operator_group(name: str) -> Group:
    """The group of an operator of torch, such as `aten::addmm` or `Optimizer.step#SGD.step`."""
    return _first(_OPERATORS, name)


@functools.lru_cache(maxsize=65536)
def uses_tensor_cores(name: str) -> bool | None:
    """True if a kernel computes on tensor cores; None where its name does not tell."""
    name = name[:MOST_READ]
    group = kernel_group(name)
    if group not in ON_TENSOR_CORES:
        return None if group in _UNTOLD else False
    if "splitkreduce" in name.lower() or _PLAIN_CORES.search(name):
        return False
    return True if _TENSOR_CORES.search(name) else None


def _first(rules: _Rules, name: str) -> Group:
    looked_at = name[:MOST_READ]
    return next((group for group, pattern in rules if pattern.search(looked_at)), Group.OTHER)
