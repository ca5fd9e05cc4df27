"""Replace functions of torch by wrappers that leave no trace in the user's tracebacks.

A wrapper calls the original in a `try` and, if that raises, calls `drop_frame` and re-raises with a
bare `raise`. CPython 3.11 and later do not add the frame again then, so the traceback reads as if
the wrapper were not there (3.10 keeps one line of ours).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gpurun.runtime.recorder import RECORDER


def drop_frame(error: BaseException) -> None:
    """Take the innermost handler's frame off the error's traceback; follow with a bare `raise`."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next


def guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a call-back: the first time it raises it is recorded and switched off for good."""
    broken = False

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal broken
        if broken:
            return None
        try:
            return function(*args, **kwargs)
        except Exception as error:
            broken = True
            RECORDER.hook_failed(name, error)
            return None

    return call


def replace(
    owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> bool:
    """Put `make(original)` in place of `name` of `owner`; False, recorded, if it fails."""
    try:
        original = getattr(owner, name)
        wrapper = make(original)
        functools.update_wrapper(wrapper, original)
        setattr(owner, name, wrapper)
    except Exception as error:
        RECORDER.hook_failed(f"{getattr(owner, '__name__', owner)}.{name}", error)
        return False
    return True
