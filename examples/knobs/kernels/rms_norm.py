"""The root mean square norm with a backward pass of its own: Triton on a GPU, closed form else.

`y = x * rsqrt(mean(x²) + eps) * weight` over the last dimension. Autograd through the operators
keeps five intermediate results for the backward pass; this keeps `x` and one number a row.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

WIDEST = 16384
"""Features that one program of the Triton kernels holds in registers."""


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """The norm of `x` (…, features) with `weight` (features), in `dtype`; computed in float32."""
    return _RmsNorm.apply(x, weight, eps, dtype)  # type: ignore[no-any-return]


class _RmsNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
        ctx.eps, ctx.dtype = eps, dtype
        ctx.fused = x.is_cuda and x.dtype != torch.float64 and x.shape[-1] <= WIDEST
        if ctx.fused:
            from .rms_norm_triton import forward

            y, scale = forward(x, weight, eps, dtype)
        else:
            y, scale = _forward(x, weight, eps, dtype)
        ctx.save_for_backward(x, weight, scale)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale = ctx.saved_tensors
        if torch.is_grad_enabled():  # somebody wants the gradient's gradient
            y = spelled_out(x, weight, ctx.eps, ctx.dtype)
            wanted = [t for t in (x, weight) if t.requires_grad]
            found = iter(torch.autograd.grad(y, wanted, dy, create_graph=True))
            gradients = [next(found) if t.requires_grad else None for t in (x, weight)]
            return (*gradients, None, None)
        if ctx.fused:
            from .rms_norm_triton import backward

            dx, dweight = backward(dy, x, weight, scale)
        else:
            dx, dweight = _backward(dy, x, weight, scale)
        return dx, dweight, None, None


def spelled_out(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """The same in operators that autograd knows."""
    wide = x.to(_wide(x))
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale * weight).to(dtype)


def _forward(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The result, and the factor of each row."""
    wide = x.to(_wide(x))
    norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return (wide * scale).mul_(weight).to(dtype), scale


def _backward(dy: Tensor, x: Tensor, weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """With n = x * scale: dweight = Σ dy n, dx = scale (dy weight − n mean(dy weight n))."""
    dy, normed = dy.to(_wide(x)), x * scale
    product = dy * normed
    dweight = product.flatten(0, -2).sum(0) if x.dim() > 1 else product.clone()
    shared = product.mul_(weight).sum(-1, keepdim=True).div_(-x.shape[-1])
    dx = (dy * weight).addcmul_(normed, shared).mul_(scale)
    return dx.to(x.dtype), dweight.to(weight.dtype)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)
