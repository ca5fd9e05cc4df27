"""Round a model's numbers as half precision does: what rounding alone does to the script.

Everything stays float32 and every kernel the script's own: only rounding errors are added.
"""

from __future__ import annotations

from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from gpurun.runtime.core.patching import guarded
from gpurun.runtime.observe.root_modules import ROOTS

Value = TypeVar("Value")


LOST_BITS = 16
"""The bits of a float32 that bfloat16 has no room for."""


def install(draw: int = 0) -> None:
    """Round float32 parameters of each root to bfloat16, in place, before its first step.

    To the nearest value, or for each `draw` from 1 on by other chances to one of the two nearest:
    some trainings multiply what rounding does, and draws of a U-Net's moved its loss by 0.5 to
    4.5 % in 150 steps.

    Outputs of layers are rounded too, and in training their gradients: computing in half
    precision rounds there. With weights alone the reference fell short of autocast: by a factor of
    2 for the loss of a contrastive ResNet, of 1.9 for what a transformer returned. Without
    gradients (inference, evaluation) all that the root and its layers take and return is rounded.

    The hooks are plain functions, for a script may save its model with them.
    """

    ROOTS.on_root.append(guarded("round the parameters", partial(_round_root, draw)))


def _round_root(draw: int, root: nn.Module) -> None:
    chance = torch.Generator().manual_seed(draw)
    with torch.no_grad():
        for parameter in root.parameters():
            if not parameter.is_meta:
                parameter.copy_(_drawn(parameter, chance) if draw else _rounded(parameter))
    for layer in root.modules():
        if layer is root or not any(True for _ in layer.children()):
            layer.register_forward_pre_hook(_before, with_kwargs=True)
            layer.register_forward_hook(_without_gradients)
            if layer is not root:
                layer.register_forward_hook(_in_training)


def _drawn(tensor: Tensor, chance: torch.Generator) -> Tensor:
    """Each number of a float32 tensor rounded up or down, the nearer the likelier."""
    if tensor.dtype is not torch.float32:
        return tensor
    carries = torch.randint(1 << LOST_BITS, tensor.shape, generator=chance, dtype=torch.int32)
    bits = tensor.detach().view(torch.int32) + carries.to(tensor.device)
    return torch.where(tensor.isfinite(), (bits & -(1 << LOST_BITS)).view(torch.float32), tensor)


def _before(
    layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    return None if torch.is_grad_enabled() else (_all_rounded(args), _all_rounded(kwargs))


def _without_gradients(layer: nn.Module, args: tuple[Any, ...], result: Value) -> Value | None:
    return None if torch.is_grad_enabled() else _all_rounded(result)


def _in_training(layer: nn.Module, args: tuple[Any, ...], result: object) -> None:
    """Round a layer's output in place, for a copy takes memory, and its gradient once that comes.

    Scalars, such as a loss, stay as they are. So do views: what they show is rounded already, or
    no layer's output.
    """
    if type(result) is not Tensor or torch.compiler.is_compiling():
        return
    if result.dtype is not torch.float32 or result.dim() == 0:
        return
    if result.grad_fn is None or result._is_view():
        return
    try:
        result.data.copy_(_rounded(result.data))  # no new version: it is what the layer returned
        result.register_hook(_rounded)
    except RuntimeError:
        return  # torch.func's transforms let nobody write


def _all_rounded(value: Value) -> Value:
    """`value` with every float32 tensor in its plain tuples, lists and dicts rounded."""
    new: Any = value
    if isinstance(value, Tensor):
        new = _rounded(value)
    elif type(value) in (list, tuple):
        new = type(new)(_all_rounded(item) for item in new)
    elif type(value) is dict:
        new = {key: _all_rounded(item) for key, item in new.items()}
    return cast(Value, new)


def _rounded(tensor: Tensor) -> Tensor:
    if tensor.dtype is not torch.float32:
        return tensor
    return tensor.to(torch.bfloat16).to(torch.float32)
