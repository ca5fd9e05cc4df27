"""Calls that a compiled module answers with its own code.

Torch.compile raises an error in some: compiled code cannot be traced, and its gradients cannot be
differentiated again. The last batch of an epoch is not worth a compilation. Hooks that came after
the compilation are not in its code.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from gpurun.knobs.applied.autograd_state import is_traced
from gpurun.knobs.applied.later_hooks import LaterHooks
from gpurun.knobs.applied.tensor_trees import leaves
from gpurun.knobs.compiling.applied.rare_calls import RareCalls
from gpurun.records.frames import drop_frame


def or_plain(
    module: Module,
    compiled: Callable[..., Any],
    hooked: Callable[[], None],
    leaner: bool = False,
) -> Callable[..., Any]:
    """`compiled`, the compiled call of `module`, except where the module's own code runs.

    `hooked` is called where that is for the sake of hooks. `leaner`: what is compiled takes much
    less memory than that code, which then runs only where compiled code cannot. Dynamo looks
    through it as through `compiled`, whose attributes it has.
    """

    plain: Callable[..., Any] = module._call_impl
    rare, later_hooks = RareCalls(module), LaterHooks(module)

    def trains_as_written(tensors: list[Tensor]) -> bool:
        return any(map(_is_differentiated, tensors)) or (not leaner and rare.is_rare(tensors))

    @functools.wraps(compiled)
    def call(*args: Any, **kwargs: Any) -> Any:
        training = torch.is_grad_enabled()
        as_written = is_traced() or (training and trains_as_written(leaves((args, kwargs))))
        if later_hooks:
            as_written = True
            hooked()
        run = plain if as_written else compiled
        try:
            return run(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise

    return call


def _is_differentiated(given: object) -> bool:
    """True if the script wants gradients of this input: a penalty on them differentiates twice."""
    if not isinstance(given, Tensor) or not given.requires_grad:
        return False
    base = given if given._base is None else given._base
    return base.is_leaf and not isinstance(base, Parameter)
