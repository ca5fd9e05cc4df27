"""Code that looks at gradients while a backward pass runs: a scaled loss would show there."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from gpurun.knobs.callers import is_ours
from gpurun.records.frames import drop_frame

OF_TENSORS = ("register_hook", "retain_grad", "register_post_accumulate_grad_hook")
OF_MODULES = (
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
    "register_backward_hook",
)


def watch(torch: ModuleType, seen: Callable[[str], None]) -> None:
    """Call `seen(method)` when code outside of torch registers such a hook from now on."""
    for owner, names in ((torch.Tensor, OF_TENSORS), (torch.nn.Module, OF_MODULES)):
        for name in names:
            setattr(owner, name, _watched(getattr(owner, name), seen))


def hooked_modules(modules: Iterable[Any]) -> bool:
    """Whether a module carries a backward hook already."""
    return any(m._backward_hooks or m._backward_pre_hooks for m in modules)


def hooked_tensors(tensors: Iterable[Any]) -> bool:
    """Whether a leaf carries a hook already."""
    return any(t._backward_hooks or t._post_accumulate_grad_hooks for t in tensors)


def _watched(original: Callable[..., Any], seen: Callable[[str], None]) -> Callable[..., Any]:
    def register(target: Any, *args: Any, **kwargs: Any) -> Any:
        frame = sys._getframe(1)
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] != "torch" and not is_ours(frame):
            seen(original.__name__)
        try:
            return original(target, *args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise

    register.__name__ = original.__name__
    register.__doc__ = original.__doc__
    return register
