"""Calls that a compiled module answers with its own code.

Torch.compile raises an error in some: compiled code cannot be traced, and its gradients cannot be
differentiated again. The last batch of an epoch is not worth a compilation. Hooks that came after
the compilation are not in its code.
"""

from __future__ import annotations

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


def trains_as_written(root: Module, leaner: bool) -> Callable[[object], bool]:
    """Tells from its arguments whether a training call of `root` runs the root's own code.

    `leaner`: what is compiled takes much less memory than that code, which then runs only where
    compiled code cannot.
    """
    rare = RareCalls(root)

    def tell(given: object) -> bool:
        tensors = leaves(given)
        return any(map(_is_differentiated, tensors)) or (not leaner and rare.is_rare(tensors))

    return tell


def or_plain(
    module: Module,
    compiled: Callable[..., Any],
    hooked: Callable[[], None],
    as_written: Callable[[object], bool],
) -> Callable[..., Any]:
    """`compiled`, the compiled call of `module`, except where the module's own code runs.

    That is in training calls of which `as_written(arguments)` says so, where the call is traced,
    and for the sake of later hooks: then `hooked` is called. Dynamo sees the module's own code.
    """
    plain: Callable[..., Any] = module._call_impl
    later_hooks = LaterHooks(module)

    def call(*args: Any, **kwargs: Any) -> Any:
        run = compiled
        if is_traced() or (torch.is_grad_enabled() and as_written((args, kwargs))):
            run = plain
        if later_hooks:
            run = plain
            hooked()
        try:
            return run(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise

    vars(call).update(_torchdynamo_inline=plain, _torchdynamo_orig_callable=plain)
    return call


def _is_differentiated(given: object) -> bool:
    """True if the script wants gradients of this input: a penalty on them differentiates twice."""
    if not isinstance(given, Tensor) or not given.requires_grad:
        return False
    base = given if given._base is None else given._base
    return base.is_leaf and not isinstance(base, Parameter)
