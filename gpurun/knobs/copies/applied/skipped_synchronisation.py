"""Skip the synchronisations that the script asks for, until it needs one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor

from gpurun.knobs.api import Hooks
from gpurun.knobs.callers import is_ours, is_users
from gpurun.records.frames import drop_frame

P = ParamSpec("P")
R = TypeVar("R")


class SkippedSynchronisation:
    """`torch.cuda.synchronize` for everybody; for the script nothing, until it needs it."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._needed = False

    def install(self) -> None:
        """Replace the function and the calls that make it necessary."""
        torch.cuda.synchronize = self._stand_in(torch.cuda.synchronize)
        for name in ("to", "copy_", "cpu"):
            setattr(Tensor, name, self._watched_copy(getattr(Tensor, name)))
        for name in ("stream", "set_stream"):
            setattr(torch.cuda, name, self._watched_stream(getattr(torch.cuda, name)))

    def _stand_in(self, original: Callable[P, None]) -> Callable[P, None]:
        def synchronize(*args: P.args, **kwargs: P.kwargs) -> None:
            if self._needed or not is_users(sys._getframe(1)):
                original(*args, **kwargs)
                return
            self._hooks.applied("torch.cuda.synchronize returns at once")

        return synchronize

    def _watched_copy(
        self, original: Callable[Concatenate[Tensor, P], Tensor]
    ) -> Callable[Concatenate[Tensor, P], Tensor]:
        def copy(target: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> Tensor:
            try:
                result = original(target, *args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
            unblocked = kwargs.get("non_blocking") or any(arg is True for arg in args)
            if unblocked and not self._needed:
                source = args[0] if args and isinstance(args[0], Tensor) else target
                # our clock copies losses to the host so too
                if source.is_cuda and not result.is_cuda and not is_ours(sys._getframe(1)):
                    self._give_up("it copies to the host without blocking")
            return result

        copy.__name__ = original.__name__
        return copy

    def _watched_stream(self, original: Callable[P, R]) -> Callable[P, R]:
        def stream(*args: P.args, **kwargs: P.kwargs) -> R:
            if not self._needed and is_users(sys._getframe(1)):
                self._give_up("it uses streams of its own")
            return original(*args, **kwargs)

        return stream

    def _give_up(self, why: str) -> None:
        self._needed = True
        torch.cuda.synchronize()
        self._hooks.revoked(f"the script needs its synchronisation: {why}")
