"""Let the host run ahead of the GPU where the script waits for it without need."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, KnobBase, Skip
from gpurun.knobs.callers import is_ours, is_users
from gpurun.records.facts import Facts
from gpurun.records.frames import drop_frame


class NeedlessSync(KnobBase):
    """`torch.cuda.synchronize()` in the script's own lines returns at once.

    Helps where people wait for the GPU at every step (to time it, or for no reason): the host then
    prepares the next step while the GPU works. What reads a result waits for it by itself.

    How it bites: times that the script measures around a synchronisation become the host's. Callers
    inside torch and other installed packages still wait: inductor times kernels so. A script that
    copies to the host without blocking, or uses streams of its own, needs its synchronisation: from
    the first such call on it waits again.
    """

    name: ClassVar[str] = "needless_sync"
    effect: ClassVar[Effect] = Effect.PIPELINE
    order: ClassVar[int] = 8
    likely: ClassVar[bool] = True

    def candidates(self, facts: Facts) -> Sequence[str] | Skip:
        """Skip them, where the script was seen to synchronise."""
        if facts.device != "cuda":
            return Skip("the model is not on a GPU")
        if "synchronize" not in facts.traits:
            return Skip("the script does not call torch.cuda.synchronize")
        return ["skip"]

    def apply(self, value: str, hooks: Hooks) -> None:
        """Stand in for the function, and watch for what needs it."""
        if value != "skip":
            hooks.skipped(f"unknown value {value!r}")
            return
        hooks.on_import("torch", lambda torch: _Synchronisation(torch, hooks).install())


class _Synchronisation:
    """`torch.cuda.synchronize` for everybody; for the script nothing, until it needs it."""

    def __init__(self, torch: ModuleType, hooks: Hooks) -> None:
        self._torch = torch
        self._hooks = hooks
        self._needed = False

    def install(self) -> None:
        """Replace the function and the calls that make it necessary."""
        cuda, tensor = self._torch.cuda, self._torch.Tensor
        cuda.synchronize = self._stand_in(cuda.synchronize)
        for owner, name in ((tensor, "to"), (tensor, "copy_"), (tensor, "cpu")):
            setattr(owner, name, self._watched_copy(getattr(owner, name)))
        for name in ("stream", "set_stream"):
            setattr(cuda, name, self._watched_stream(getattr(cuda, name)))

    def _stand_in(self, original: Any) -> Any:
        def synchronize(*args: Any, **kwargs: Any) -> None:
            if self._needed or not is_users(sys._getframe(1)):
                original(*args, **kwargs)
                return
            self._hooks.applied("torch.cuda.synchronize returns at once")

        return synchronize

    def _watched_copy(self, original: Any) -> Any:
        def copy(target: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                result = original(target, *args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
            unblocked = kwargs.get("non_blocking") or any(arg is True for arg in args)
            if unblocked and not self._needed:
                source = args[0] if args and hasattr(args[0], "is_cuda") else target
                # our clock copies losses to the host so too
                if source.is_cuda and not result.is_cuda and not is_ours(sys._getframe(1)):
                    self._give_up("it copies to the host without blocking")
            return result

        copy.__name__ = original.__name__
        return copy

    def _watched_stream(self, original: Any) -> Any:
        def stream(*args: Any, **kwargs: Any) -> Any:
            if not self._needed and is_users(sys._getframe(1)):
                self._give_up("it uses streams of its own")
            return original(*args, **kwargs)

        return stream

    def _give_up(self, why: str) -> None:
        self._needed = True
        self._torch.cuda.synchronize()
        self._hooks.revoked(f"the script needs its synchronisation: {why}")
