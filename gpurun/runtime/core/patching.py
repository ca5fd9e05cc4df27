"""Replace functions of torch by wrappers that leave no trace in the user's tracebacks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gpurun.records.frames import drop_frame, transparent
from gpurun.runtime.core.recorder import RECORDER

Settle = Callable[[Exception | None], None]
"""Called once the object is built, with the error that refused the edited arguments, or None."""


def guarded(
    name: str, function: Callable[..., Any], failed: Callable[[Exception], None] | None = None
) -> Callable[..., Any]:
    """Wrap a call-back so that the first time it raises it is recorded and switched off.

    `failed` is then called with the error.
    """
    broken = False

    @functools.wraps(function)
    def call(*args: object, **kwargs: object) -> Any:
        nonlocal broken
        if broken:
            return None
        try:
            return function(*args, **kwargs)
        except Exception as error:
            broken = True
            RECORDER.hook_failed(name, error)
            if failed is not None:
                failed(error)
            return None

    return call


def switched_off(name: str, error: Exception) -> Callable[..., None]:
    """Record the error of a call-back and return its replacement, which does nothing.

    For hot paths, where `guarded` would cost a call a step.
    """
    RECORDER.hook_failed(name, error)
    return lambda *args: None


def replace(
    owner: object, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
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


def stands_in(
    method: Callable[..., Any],
) -> Callable[[Any, Callable[..., Any]], Callable[..., Any]]:
    """Make `method(self, original, *arguments)` a maker for `replace`: what it makes calls the
    method with the original before the caller's own arguments."""

    @functools.wraps(method)
    def make(self: object, original: Callable[..., Any]) -> Callable[..., Any]:
        return transparent(functools.partial(method, self, original))

    return make


def build_edited(
    name: str,
    init: Callable[..., None],
    target: object,
    own: dict[str, Any],
    edited: dict[str, Any],
    settle: Settle,
) -> None:
    """`init(target, **edited)`, or with the script's own arguments if those are refused.

    `settle` is called with the refusal, or None, once the target is built.
    """
    settle = guarded(f"{name}: outcomes", settle)
    refusal: Exception | None = None
    try:
        if edited.keys() != own.keys() or any(edited[key] is not own[key] for key in own):
            init(target, **edited)
            settle(None)
            return
    except Exception as error:
        RECORDER.hook_failed(name, error)
        refusal = error.with_traceback(None)  # it would keep what was half built alive
    try:
        init(target, **own)
    except BaseException as error:
        drop_frame(error)
        raise
    settle(refusal)


class MethodStandIns:
    """Stands in methods of one class until `restore`."""

    def __init__(self, cls: type) -> None:
        self._cls = cls
        self._replaced: dict[str, tuple[Any, Any]] = {}
        """By name: what stands in, and what the class itself had there."""

    def put(self, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Put `make(original)` in place of a method; a failure is recorded."""
        before = vars(self._cls).get(name)
        if replace(self._cls, name, make):
            self._replaced[name] = (vars(self._cls)[name], before)

    def restore(self) -> None:
        """Leave nothing behind; a stand-in that the script has wrapped stays in its calls."""
        for name, (stand_in, before) in self._replaced.items():
            if vars(self._cls).get(name) is not stand_in:
                continue
            if before is None:
                delattr(self._cls, name)
            else:
                setattr(self._cls, name, before)
        self._replaced.clear()
