"""Wrappers that leave no line of ours in the user's tracebacks.

A wrapper calls the original in a `try` and, if that raises, calls `drop_frame` and re-raises with a
bare `raise`. CPython does not add the frame again then, so the traceback reads as if the wrapper
were not there. Runtime and knobs both wrap, so it lies where both may import it from.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def transparent(wrapper: F) -> F:
    """The wrapper, which does all this by itself. It costs a further call: not for hot paths."""

    @functools.wraps(wrapper)
    def call(*args: object, **kwargs: object) -> Any:
        try:
            return wrapper(*args, **kwargs)
        except BaseException as error:
            drop_frame(error, 2)  # no traceback in a variable: it would keep this frame alive
            raise

    return cast(F, call)


def drop_frame(error: BaseException, count: int = 1) -> None:
    """Take the innermost handler's frame off the error's traceback; follow with a bare `raise`.

    `count`: so many frames, those that it called among them.
    """
    trace = error.__traceback__
    if trace is not None:
        for _ in range(count):
            trace = None if trace is None else trace.tb_next
        error.__traceback__ = trace
        if sys.version_info < (3, 11):
            _restore_with(error)


def drop_frames(error: BaseException, files: Collection[str]) -> None:
    """The same, with all frames down to the innermost one of code in these files, if the error
    comes from further inside.
    """
    found = inside = error.__traceback__
    while inside is not None and inside.tb_next is not None:
        if inside.tb_frame.f_code.co_filename in files:
            found = inside
        inside = inside.tb_next
    error.__traceback__ = found
    drop_frame(error)


def _restore_with(error: BaseException) -> None:
    """Before 3.11 a bare `raise` restores the traceback that the handler was entered with."""
    import ctypes

    python = ctypes.pythonapi
    python.PyErr_SetExcInfo.argtypes = [ctypes.py_object] * 3
    python.PyErr_SetExcInfo.restype = None
    parts = (type(error), error, error.__traceback__)
    if parts[2] is None:
        return  # raised by the wrapper itself: its frame is all there is
    for part in parts:
        python.Py_IncRef(ctypes.py_object(part))  # the call takes them over
    python.PyErr_SetExcInfo(*parts)
