"""Call what the script checkpoints, and keep its activations, while there is room."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import checkpoint

from gpurun.knobs.api import Hooks
from gpurun.knobs.applied.tensor_trees import leaves
from gpurun.records.frames import drop_frame

OPTIONS = frozenset(
    {"use_reentrant", "preserve_rng_state", "determinism_check", "debug", "early_stop"}
)
"""Arguments that are torch's; others are the function's."""
ROOM = 0.5
"""Tensors may take this part of a GPU's memory before a call is computed again as before."""


class KeptActivations:
    """Stands in for `torch.utils.checkpoint.checkpoint`."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    def install(self) -> None:
        """Replace the function before the script imports it."""
        checkpoint.checkpoint = self._stand_in(checkpoint.checkpoint)

    def _stand_in(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            try:
                if torch.compiler.is_compiling() or not torch.is_grad_enabled():
                    return original(function, *args, **kwargs)
                if not _needless(function, args, kwargs):
                    return original(function, *args, **kwargs)
                self._hooks.applied("forward passes are not computed again")
                return function(*args, **{k: v for k, v in kwargs.items() if k not in OPTIONS})
            except BaseException as error:
                drop_frame(error)
                raise

        return call


def _needless(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> bool:
    """True if the function gives the same numbers and gradients by itself, and there is room."""
    if "context_fn" in kwargs or not kwargs.get("preserve_rng_state", True):
        return False
    reentrant = kwargs.get("use_reentrant") is not False
    if reentrant and not (kwargs.keys() <= OPTIONS and _differentiable(args)):
        return False
    return not _has_statistics(function) and _has_room(args)


def _differentiable(args: tuple[Any, ...]) -> bool:
    """True if gradients flow through the reentrant kind: into its own arguments alone.

    A gradient inside a container would take another way there.
    """
    own = [value for value in args if isinstance(value, Tensor)]
    packed = [leaf for value in args if not isinstance(value, Tensor) for leaf in leaves(value)]
    return any(x.requires_grad for x in own) and not any(x.requires_grad for x in packed)


def _has_statistics(function: object) -> bool:
    """True if a batch normalisation in it would update its statistics once instead of twice."""
    return any(
        isinstance(module, _BatchNorm) and module.training and module.track_running_stats
        for owner in _modules(function)
        for module in owner.modules()
    )


def _modules(function: object, depth: int = 3) -> Iterator[Module]:
    """The modules that a function may call: itself, its owner, what it binds or encloses."""
    if isinstance(function, Module):
        yield function
    elif depth and callable(function):
        owner, bound = getattr(function, "__self__", None), getattr(function, "func", None)
        for part in (owner, bound, *_enclosed(function)):
            yield from _modules(part, depth - 1)


def _enclosed(function: object) -> Iterator[object]:
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # its variable has no value yet
            yield cell.cell_contents


def _has_room(args: tuple[Any, ...]) -> bool:
    """True on the CPU, and on a GPU that is not half full."""
    device = next((x.device for value in args for x in leaves(value) if x.is_cuda), None)
    if device is None:
        return True
    total = torch.cuda.get_device_properties(device).total_memory
    return torch.cuda.memory_allocated(device) < ROOM * total
