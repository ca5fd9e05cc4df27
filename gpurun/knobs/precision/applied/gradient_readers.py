"""Code that looks at gradients while a backward pass runs: a scaled loss would show there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import Module

from gpurun.knobs.applied.call_types import Args, Kwargs
from gpurun.knobs.applied.replaced_methods import asking_first
from gpurun.knobs.callers import is_ours

OF_TENSORS = ("register_hook", "retain_grad", "register_post_accumulate_grad_hook")
OF_MODULES = (
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
    "register_backward_hook",
)


def watch(seen: Callable[[str], None]) -> None:
    """Call `seen(method)` when code outside of torch registers such a hook from now on."""
    for owner, names in ((torch.Tensor, OF_TENSORS), (torch.nn.Module, OF_MODULES)):
        for name in names:
            setattr(owner, name, asking_first(getattr(owner, name), _telling(name, seen)))


def hooked_modules(modules: Iterable[Module]) -> bool:
    """True if a module carries a backward hook already."""
    return any(m._backward_hooks or m._backward_pre_hooks for m in modules)


def hooked_tensors(tensors: Iterable[Tensor]) -> bool:
    """True if a leaf carries a hook already."""
    return any(t._backward_hooks or t._post_accumulate_grad_hooks for t in tensors)


def _telling(
    method: str, seen: Callable[[str], None]
) -> Callable[[Tensor | Module, Args, Kwargs], None]:
    def ask(target: Tensor | Module, args: Args, kwargs: Kwargs) -> None:
        frame = sys._getframe(2)  # who calls the method that asks
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] != "torch" and not is_ours(frame):
            seen(method)

    return ask
