"""The Triton kernels of `rms_norm`: a row is read once, and written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _forward(x_at, weight_at, y_at, scale_at, width, eps, BLOCK: tl.constexpr):
    """One row a program."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(x_at + row * width + column, mask=inside, other=0.0).to(tl.float32)
    weight = tl.load(weight_at + column, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(x * x, axis=0) / width + eps)
    tl.store(scale_at + row, scale)
    y = (x * scale * weight).to(y_at.dtype.element_ty)
    tl.store(y_at + row * width + column, y, mask=inside)


@triton.jit
def _backward(
    dy_at, x_at, weight_at, scale_at, dx_at, dweight_at, rows, width, share, BLOCK: tl.constexpr
):
    """`share` rows a program, which also sums up its part of the weight's gradient."""
    program = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < width
    weight = tl.load(weight_at + column, mask=inside, other=0.0).to(tl.float32)
    dweight = tl.zeros((BLOCK,), dtype=tl.float32)
    for row in range(program * share, tl.minimum(program * share + share, rows)):
        place = tl.cast(row, tl.int64) * width + column
        x = tl.load(x_at + place, mask=inside, other=0.0).to(tl.float32)
        dy = tl.load(dy_at + place, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scale_at + row)
        normed = x * scale
        slope = dy * weight
        dweight += dy * normed
        dx = scale * (slope - normed * (tl.sum(slope * normed, axis=0) / width))
        tl.store(dx_at + place, dx.to(dx_at.dtype.element_ty), mask=inside)
    tl.store(dweight_at + program.to(tl.int64) * width + column, dweight, mask=inside)


def forward(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """The result in `dtype`, and the factor of each row in float32 (…, 1)."""
    x, width = x.contiguous(), x.shape[-1]
    y = torch.empty_like(x, dtype=dtype)
    scale = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    if x.numel():
        with torch.cuda.device_of(x):
            _forward[(scale.numel(),)](
                x, weight.contiguous(), y, scale, width, eps, **_shape(width)
            )
    return y, scale


def backward(dy: Tensor, x: Tensor, weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of `x` and of `weight`."""
    dy, x, width, rows = dy.contiguous(), x.contiguous(), x.shape[-1], scale.numel()
    dx = torch.empty_like(x)
    if rows == 0:
        return dx, torch.zeros_like(weight)
    share = triton.cdiv(rows, min(rows, _programs(x)))
    programs = triton.cdiv(rows, share)
    parts = torch.empty((programs, width), dtype=torch.float32, device=x.device)
    with torch.cuda.device_of(x):
        _backward[(programs,)](
            dy, x, weight.contiguous(), scale, dx, parts, rows, width, share, **_shape(width)
        )
    return dx, parts.sum(0).to(weight.dtype)


def _shape(width: int) -> dict[str, int]:
    block = triton.next_power_of_2(width)
    return {"BLOCK": block, "num_warps": min(16, max(1, block // 512))}


def _programs(x: Tensor) -> int:
    """A few for each multiprocessor: enough to hide its waits, few enough partial sums."""
    return 4 * torch.cuda.get_device_properties(x.device).multi_processor_count
