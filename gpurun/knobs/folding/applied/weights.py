"""Fold a batch normalisation into the layer before it, and notice when to do so anew.

While it evaluates it is a linear map by channel: scaled weights and another bias of the layer give
the same figures in other rounding. (`torch.nn.utils.fusion` does this for good.)
"""

from __future__ import annotations

from typing import Any

LAYERS = ("Conv1d", "Conv2d", "Conv3d", "Linear")
NORMS = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d")
"""Classes of `torch.nn`; subclasses may compute something else."""


class Fold:
    """One layer and the normalisation that follows it, with the weights of both in one."""

    def __init__(self, layer: Any, norm: Any) -> None:
        self.layer = layer
        self.norm = norm
        self._made_of: tuple[Any, ...] | None = None
        self._weight: Any = None
        self._bias: Any = None

    def prepare(self, writes: int) -> bool:
        """Fold anew if a tensor or `writes` changed; False where the pair is not to be folded."""
        if self.norm.training or _is_watched(self.layer, self.norm):
            return False
        tensors = tensors_of(self.layer, self.norm)
        versions = ((t.data_ptr(), t._version) for t in tensors if t is not None)
        made_of = (writes, *versions)
        if made_of == self._made_of:
            return True
        self._weight, self._bias = folded(tensors, self.norm.eps)
        self._made_of = made_of
        return True

    def forget(self) -> None:
        """Free the folded weights; the next evaluation folds anew."""
        self._made_of = self._weight = self._bias = None

    def __call__(self, x: Any) -> Any:
        """What layer and normalisation make of `x`."""
        return computed(self.layer, x, self._weight, self._bias)


def folded(tensors: tuple[Any, ...], eps: float) -> tuple[Any, Any]:
    """Weight and bias of a layer with its normalisation, of `tensors_of` both; None is none."""
    import torch

    weight, bias, mean, variance, gain, shift = tensors
    with torch.no_grad():
        scale = torch.rsqrt(variance + eps)
        scale = scale if gain is None else scale * gain
        moved = -mean if bias is None else bias - mean
        moved = moved * scale if shift is None else moved * scale + shift
        scaled = weight * scale.reshape(-1, *[1] * (weight.dim() - 1))
        return scaled.to(weight.dtype), moved.to(weight.dtype)


def computed(layer: Any, x: Any, weight: Any, bias: Any) -> Any:
    """The layer with other weights."""
    import torch

    if isinstance(layer, torch.nn.Linear):
        return torch.nn.functional.linear(x, weight, bias)
    return layer._conv_forward(x, weight, bias)


def is_a(module: Any, names: tuple[str, ...]) -> bool:
    """Whether a module is of one of these classes of `torch.nn` itself."""
    import torch

    name = type(module).__name__
    return name in names and type(module) is getattr(torch.nn, name)


def can_fold(layer: Any, norm: Any) -> bool:
    """Whether the pair is a linear map that nobody looks into, of tensors that tell a change.

    Tensors of inference mode have no version, and other processes may write into shared ones.
    """
    if _is_watched(layer, norm) or norm.running_mean is None or norm.running_var is None:
        return False
    present = [t for t in tensors_of(layer, norm) if t is not None]
    return not any(t.is_inference() or (not t.is_cuda and t.is_shared()) for t in present)


def tensors_of(layer: Any, norm: Any) -> tuple[Any, ...]:
    """What `folded` takes, but for the norm's `eps`."""
    mean, variance = norm.running_mean, norm.running_var
    return layer.weight, layer.bias, mean, variance, norm.weight, norm.bias


def _is_watched(layer: Any, norm: Any) -> bool:
    """Hooks may look at what passes between the two, or make the weights (`weight_norm`)."""
    return bool(
        layer._forward_hooks
        or layer._forward_pre_hooks
        or norm._forward_hooks
        or norm._forward_pre_hooks
    )
