"""Environment variables that slow a training down, mostly left over from debugging.

The runtime writes the names of those that are set so; nobody ever records a variable's value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping


def _is_on(value: str) -> bool:
    return value.strip().lower() not in ("", "0", "false", "off", "no")


def _is_off(value: str) -> bool:
    return value.strip().lower() in ("0", "false", "off", "no")


def _is_one(value: str) -> bool:
    return value.strip() == "1"


def _is_detail(value: str) -> bool:
    return value.strip().upper() == "DETAIL"


def _is_debug(value: str) -> bool:
    return "debug" in value.lower()


HURTFUL: dict[str, Callable[[str], bool]] = {
    "CUDA_LAUNCH_BLOCKING": _is_on,
    "PYTORCH_NO_CUDA_MEMORY_CACHING": _is_on,
    "NVIDIA_TF32_OVERRIDE": _is_off,
    "TORCHDYNAMO_DISABLE": _is_on,
    "TORCH_COMPILE_DISABLE": _is_on,
    "TORCH_DISTRIBUTED_DEBUG": _is_detail,
    "NCCL_P2P_DISABLE": _is_on,
    "NCCL_SHM_DISABLE": _is_on,
    "NCCL_IB_DISABLE": _is_on,
    "NCCL_BLOCKING_WAIT": _is_on,
    "TORCH_NCCL_BLOCKING_WAIT": _is_on,
    "OMP_NUM_THREADS": _is_one,
    "MKL_NUM_THREADS": _is_one,
    "PYTHONMALLOC": _is_debug,
    "PYTHONDEVMODE": _is_on,
}
"""By name, the values that hurt."""


def hurtful_switches(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the variables that are set to a value which slows training down."""
    return tuple(n for n, hurts in HURTFUL.items() if n in environment and hurts(environment[n]))
