"""Hand out logits that are cast to float32 when somebody reads them, and link them to their graph.

A cast of large logits writes twice what it reads, and most training scripts only ever take the loss
of them. A tensor of this module has the shape, strides, type and graph of the cast. Gradients stay
in half precision on their way back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from gpurun.knobs.applied.root_calls import map_tensors
from gpurun.knobs.applied.uncast_tensor import Loss, ToCopy, Uncast, uncast_again


@dataclass(frozen=True)
class Computed:
    """Something computed of numbers in half precision.

    `gradient(half, slope, *others)`: its gradient for the numbers, from the one for itself, without
    a graph. `plainly(tensor, *others)`: the same value by operations of torch, for those who
    differentiate twice.
    """

    value: Tensor
    gradient: Callable[..., Tensor]
    plainly: Callable[..., Tensor]


def uncast(half: Tensor, loss: Loss | None = None) -> Tensor:
    """A tensor in place of `half.float()`, linked to `half` in the graph of autograd.

    Its strides are those that a cast gives, also where there are gaps between the rows of `half`.

    In plain training `loss` is called in place of `torch.nn.functional.cross_entropy`; it returns
    None where the call is to be made as it is.
    """
    return _apply(_Upcast, half, loss)


def half_of(tensor: Tensor) -> Tensor | None:
    """The numbers in half precision, outside the graph of autograd; None once they are cast."""
    assert isinstance(tensor, Uncast)
    return tensor._present.detach() if tensor._numbers.is_half else None


def of_half(tensor: Tensor, computed: Computed, others: Sequence[Tensor | None]) -> Tensor:
    """The value that was computed from `half_of(tensor)` and `others`, as part of the graph."""
    return _apply(_OfHalf, _apply(_Fork, tensor), computed, *others)


def in_float32(value: object) -> Any:
    """`value` with plain tensors in the place of those of this module."""

    def plain(tensor: Tensor) -> Tensor:
        return _apply(ToCopy, tensor) if isinstance(tensor, Uncast) else tensor

    return map_tensors(value, plain)


def _apply(function: type[torch.autograd.Function], *args: object) -> Tensor:
    result: Tensor = function.apply(*args)  # type: ignore[no-untyped-call]
    return result


class _Context(FunctionCtx):
    """The attributes that the functions below keep from their forward."""

    dtype: torch.dtype
    computed: Computed
    saved_tensors: tuple[Any, ...]
    needs_input_grad: tuple[bool, ...]


class _Upcast(torch.autograd.Function):
    """The cast, as autograd sees it."""

    @staticmethod
    def forward(ctx: _Context, half: Tensor, loss: Loss | None) -> Uncast:
        ctx.set_materialize_grads(False)
        ctx.dtype = half.dtype
        return uncast_again(half.detach(), loss)

    @staticmethod
    def backward(ctx: _Context, gradient: Tensor | None) -> tuple[Tensor | None, None]:
        if gradient is None:
            return None, None
        if isinstance(gradient, Uncast) and not torch.is_grad_enabled():
            if gradient._numbers.is_half:
                return gradient._present, None
        return gradient.to(ctx.dtype), None


class _Fork(torch.autograd.Function):
    """The same tensor for us alone: what the script changes in place does not reach it."""

    @staticmethod
    def forward(ctx: _Context, tensor: Uncast) -> Uncast:
        return uncast_again(tensor._present.detach())

    @staticmethod
    def backward(ctx: _Context, gradient: Tensor) -> Tensor:
        return gradient


class _OfHalf(torch.autograd.Function):
    """The results that were computed without the cast."""

    @staticmethod
    def forward(ctx: _Context, fork: Uncast, computed: Computed, *others: Tensor | None) -> Tensor:
        ctx.dtype = fork._numbers.data.dtype
        ctx.computed = computed
        ctx.save_for_backward(fork, *others)  # type: ignore[arg-type]  # torch takes None too
        return computed.value

    @staticmethod
    def backward(ctx: _Context, slope: Tensor) -> tuple[Tensor | None, ...]:
        fork, *others = ctx.saved_tensors
        if torch.is_grad_enabled():
            full = _apply(ToCopy, fork)
            value = ctx.computed.plainly(full, *others)
            (found,) = torch.autograd.grad(value, full, slope, create_graph=True)
        else:
            half = fork._numbers.data.to(ctx.dtype)
            found = uncast_again(ctx.computed.gradient(half, slope, *others))
        return found, *(None for _ in ctx.needs_input_grad[1:])
