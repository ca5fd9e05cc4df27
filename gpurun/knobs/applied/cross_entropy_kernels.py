"""The functions that are compiled: cross entropy of half-precision logits, and its gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from gpurun.knobs.device_requirements import traced


@traced
def half_cross_entropy(
    half: Tensor,
    target: Tensor,
    weight: Tensor | None,
    ignored: int,
    reduction: str,
    smoothing: float,
) -> tuple[Tensor, Tensor]:
    """The loss as torch computes it under autocast, and the figure of each row that its gradient
    needs: the logarithm of the sum of the exponentials."""
    logits = half.float()
    top = logits.amax(1, keepdim=True)
    mass = (logits - top).exp().sum(1, keepdim=True)
    scale = top + mass.log()
    taken, counts, weights = weigh(logits, target, weight, ignored)
    loss = ((scale - logits.gather(1, taken)) * weights).where(counts, 0.0)
    if smoothing:
        uniform = scale * logits.shape[1] - logits.sum(1, keepdim=True)
        if weight is not None:
            weighted = logits * spread(weight, logits)
            uniform = scale * weight.sum() - weighted.sum(1, keepdim=True)
        share = smoothing / logits.shape[1]
        loss = (1 - smoothing) * loss + share * uniform.where(counts, 0.0)
    if reduction == "none":
        return loss.squeeze(1), scale
    total = loss.sum()
    return (total / weights.sum() if reduction == "mean" else total), scale


@traced
def half_cross_entropy_gradient(
    half: Tensor, scale: Tensor, slope: Tensor, target: Tensor, weight: Tensor | None,
    ignored: int, reduction: str, smoothing: float, extra: int,
) -> Tensor:  # fmt: skip
    """Its gradient, in half precision, with so many columns of zeros at its end."""
    logits = half.float()
    taken, counts, weights = weigh(logits, target, weight, ignored)
    classes = spread(torch.arange(logits.shape[1], device=half.device), logits)
    ours = (1 - smoothing) * weights
    whole: Tensor = ours
    others: Tensor | float = 0.0
    if smoothing:
        share = smoothing / logits.shape[1] * counts
        others = share if weight is None else share * spread(weight, logits)
        whole = ours + share * (logits.shape[1] if weight is None else weight.sum())
    found = (logits - scale).exp() * whole - others - torch.where(classes == taken, ours, 0.0)
    if reduction == "none":
        slope = slope.unsqueeze(1)
    elif reduction == "mean":
        slope = slope / weights.sum()
    found = (found * slope).where(counts, 0.0).to(half.dtype)
    return torch.nn.functional.pad(found, (0, extra)) if extra else found


@traced
def weigh(
    logits: Tensor, target: Tensor, weight: Tensor | None, ignored: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The classes of the targets, which of them count, and what each weighs."""
    target = target.unsqueeze(1)
    counts = target != ignored
    taken = target.where(counts, 0)
    return taken, counts, counts.to(logits.dtype) * (1 if weight is None else weight[taken])


@traced
def spread(classes: Tensor, logits: Tensor) -> Tensor:
    """Values by class, so that they meet the logits."""
    return classes.view(-1, *[1] * (logits.dim() - 2))
