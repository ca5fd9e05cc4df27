"""Let the host run ahead of the GPU where the script waits for it without need."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from gpurun.knobs.api import Effect, Hooks, Knob, Skip
from gpurun.knobs.callers import is_ours, is_users
from gpurun.knobs.source_forms import NoSynchronisation, SourceForm
from gpurun.records.facts import Facts
from gpurun.records.finding import FindingType
from gpurun.records.frames import drop_frame

if TYPE_CHECKING:
    from torch import Tensor


class NeedlessSync(Knob):
    """`torch.cuda.synchronize()` in the script's own lines returns at once.

    Helps scripts that wait for the GPU at every step (to time it, or for no reason). The host then
    prepares the next step while the GPU works. Code that reads a result waits for it by itself.

    Risks: times that the script measures around a synchronisation become the host's. Callers inside
    torch and other installed packages still wait: inductor times kernels so. A script that copies
    to the host without blocking, or uses its own streams, needs its synchronisation. From the first
    such call on it waits again.
    """

    name = "needless_sync"
    answers = (FindingType.CPU_GPU_SYNC,)
    effect = Effect.PIPELINE
    choices = ("skip",)
    order = 8
    likely = True

    def candidates(self, facts: Facts) -> Sequence[str] | Skip:
        """Skip them, where the script was seen to synchronise."""
        if facts.device != "cuda":
            return Skip("the model is not on a GPU")
        if "synchronize" not in facts.traits:
            return Skip("the script does not call torch.cuda.synchronize")
        return ["skip"]

    def source_forms(self, value: str) -> Sequence[SourceForm]:
        """The calls go."""
        return [NoSynchronisation()]

    def apply(self, value: str, hooks: Hooks) -> None:
        """Stand in for the function, and watch for what needs it."""
        _SkippedSynchronisation(hooks).install()


P = ParamSpec("P")
R = TypeVar("R")


class _SkippedSynchronisation:
    """`torch.cuda.synchronize` for everybody; for the script nothing, until it needs it."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._needed = False

    def install(self) -> None:
        """Replace the function and the calls that make it necessary."""
        import torch
        from torch import Tensor

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
                source: Any = args[0] if args and hasattr(args[0], "is_cuda") else target
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
        import torch

        self._needed = True
        torch.cuda.synchronize()
        self._hooks.revoked(f"the script needs its synchronisation: {why}")
