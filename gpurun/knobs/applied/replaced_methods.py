"""Put a method of ours before one of torch: it may answer the call in its place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpurun.records.frames import drop_frame

Ask = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any | None]
"""(target, args, kwargs of a call) → what it returns instead; None: the original is called."""


def asking_first(original: Callable[..., Any], ask: Ask) -> Callable[..., Any]:
    """What takes the place of a method: `ask` hears of each call, and may answer it."""

    def method(target: Any, *args: Any, **kwargs: Any) -> Any:
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
