"""Stand in for the forward of chosen modules, unseen by their copies, pickles and state dicts."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any, Generic, TypeVar

from gpurun.records.frames import drop_frame

E = TypeVar("E")


class ReplacedForwards(Generic[E]):
    """Calls `run(module, entry, original, args, kwargs)` for the forward of each chosen module.

    The replacement sits on the class and looks for the very instance, so a copy (an EMA model, a
    spawned child's) runs its own forward, and a pickle holds nothing of it. What torch.compile
    traces is the original. What `run` raises reads as if the original had been called.
    """

    def __init__(self, run: Callable[[Any, E, Any, Any, Any], Any]) -> None:
        from gpurun.runtime.core.identity_map import IdentityMap

        self._run = run
        self._entries: IdentityMap[E | None] = IdentityMap()
        self._classes: set[type] = set()

    def choose(self, module: Any, entry: E) -> None:
        """Stand in for this module's forward from now on."""
        cls = type(module)
        if cls not in self._classes:
            self._classes.add(cls)
            cls.forward = self._stand_in(cls, cls.forward)
        self._entries[module] = entry

    def leave(self, module: Any) -> None:
        """Let the module run its own forward again."""
        self._entries[module] = None

    def _stand_in(self, cls: type, original: Any) -> Any:
        import torch

        find, run, is_compiling = self._entries.get, self._run, torch.compiler.is_compiling
        drop_frames = _drop_frames

        def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                if is_compiling() or type(module) is not cls:
                    return original(module, *args, **kwargs)
                entry = find(module)
                if entry is None:
                    return original(module, *args, **kwargs)
                return run(module, entry, original, args, kwargs)
            except BaseException as error:
                drop_frames(error, original)
                raise

        return functools.update_wrapper(_among(original, forward), original)


def _among(original: Any, forward: Any) -> Any:
    """`forward`, which reads no globals, among those of the original.

    There TorchScript looks up what the source of the original names.
    """
    if not isinstance(original, FunctionType):
        return forward
    return FunctionType(
        forward.__code__, original.__globals__, forward.__name__, None, forward.__closure__
    )


def cannot_choose(module: Any) -> str | None:
    """Why a module's forward cannot be stood in for, None if it can."""
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        return "it is compiled by TorchScript"
    if "forward" in vars(module):
        return "its forward was replaced by the script"
    return None


def _drop_frames(error: BaseException, original: Any) -> None:
    """Take off the traceback what lies between the caller and the original."""
    trace, code = error.__traceback__, getattr(original, "__code__", None)
    while trace is not None and trace.tb_next is not None:
        if trace.tb_next.tb_frame.f_code is code:
            error.__traceback__ = trace
            break
        trace = trace.tb_next
    drop_frame(error)
