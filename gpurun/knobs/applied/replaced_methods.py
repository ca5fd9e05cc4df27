"""Put a method of ours before one of torch: it may answer the call in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import Tensor

from gpurun.knobs.applied.call_types import Args, Kwargs
from gpurun.records.frames import drop_frame

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")

Ask = Callable[[Tensor, Args, Kwargs], object]
"""(target, args, kwargs of a call) → what it returns instead; None: the original is called."""


def intercepted(
    original: Callable[Concatenate[T, P], R],
    ask: Callable[[T, Args, Kwargs], object],
) -> Callable[Concatenate[T, P], Any]:
    """The replacement of a method: it passes each call to `ask`, which may answer it."""

    def method(target: T, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        answer = ask(target, args, kwargs)
        if answer is not None:
            return answer
        try:
            return original(target, *args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise

    method.__name__ = original.__name__
    method.__doc__ = original.__doc__
    return method
