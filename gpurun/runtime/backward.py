"""Seeing backward passes, whoever starts them (`Tensor.backward` ends in the same function)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from gpurun.runtime.patching import drop_frame, guarded, replace
from gpurun.runtime.steps import CLOCK

now = time.perf_counter_ns


def install(torch: Any) -> None:
    """Watch `torch.autograd.backward`, and `grad` for scripts that step parameters by hand."""
    replace(torch.autograd, "backward", _watch_backward)
    replace(torch.autograd, "grad", _watch_grad)


def _scalar(tensors: Any) -> Any:
    first = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
    return first if hasattr(first, "numel") and first.numel() == 1 else None


def _watch_backward(original: Callable[..., Any]) -> Callable[..., Any]:
    tell = guarded("backward", CLOCK.backward)

    def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
        began = now()
        try:
            result = original(tensors, *args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        tell(now() - began, _scalar(tensors))
        return result

    return backward


def _watch_grad(original: Callable[..., Any]) -> Callable[..., Any]:
    tell = guarded("gradient", CLOCK.backward)

    def grad(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        began = now()
        try:
            result = original(outputs, *args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        if not CLOCK.optimizers and not kwargs.get("create_graph"):
            tell(now() - began, _scalar(outputs))
        return result

    return grad
