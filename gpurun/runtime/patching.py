"""Replace functions of torch by wrappers that leave no trace in the user's tracebacks.

A wrapper calls the original in a `try` and, if that raises, calls `drop_frame` and re-raises with a
bare `raise`. CPython does not add the frame again then, so the traceback reads as if the wrapper
were not there.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from gpurun.runtime.recorder import RECORDER


def drop_frame(error: BaseException) -> None:
    """Take the innermost handler's frame off the error's traceback; follow with a bare `raise`."""
    trace = error.__traceback__
    if trace is not None:
        error.__traceback__ = trace.tb_next
        if sys.version_info < (3, 11):
            _restore_with(error)


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


def guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a call-back so that the first time it raises it is recorded and switched off."""
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


def switched_off(name: str, error: Exception) -> Callable[..., None]:
    """What takes the place of a call-back that raised, where `guarded` would cost a call a step."""
    RECORDER.hook_failed(name, error)
    return lambda *args: None


def replace(
    owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> bool:
    """Put `make(original)` in place of `owner`'s attribute `name`; False, recorded, if it fails."""
    try:
        original = getattr(owner, name)
        wrapper = make(original)
        functools.update_wrapper(wrapper, original)
        setattr(owner, name, wrapper)
    except Exception as error:
        RECORDER.hook_failed(f"{getattr(owner, '__name__', owner)}.{name}", error)
        return False
    return True


def build_edited(
    name: str,
    init: Callable[..., None],
    target: Any,
    own: dict[str, Any],
    edited: dict[str, Any],
) -> None:
    """`init(target, **edited)`, or with the script's own arguments if those are refused."""
    if edited.keys() != own.keys() or any(edited[key] is not own[key] for key in own):
        try:
            init(target, **edited)
        except Exception as error:
            RECORDER.hook_failed(name, error)
        else:
            return
    try:
        init(target, **own)
    except BaseException as error:
        drop_frame(error)
        raise
