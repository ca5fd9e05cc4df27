"""Finding root modules (the outermost module called while training) and standing in their calls.

Until the roots are known `nn.Module.__call__` is watched; then only the class of each root is. The
patch sits on the class, so instances, copies, state dicts and pickles are as without us.
"""

from __future__ import annotations

import contextlib
import time
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from threading import get_ident
from typing import Any

from gpurun.records.events import RootEvent, TraitEvent
from gpurun.runtime.patching import drop_frame, guarded
from gpurun.runtime.recorder import RECORDER
from gpurun.runtime.steps import CLOCK

GIVE_UP_STEPS = 3
"""After this many steps without a root the search ends: the model is not called as a module."""
INFERENCE_CALLS = 3
COVERAGE = 0.5
"""A root holds at least this part of some optimizer's parameters."""

Context = Callable[[], AbstractContextManager[Any]]
Output = Callable[[Any], Any]

now = time.perf_counter_ns


class Roots:
    """The root modules of this process, and what knobs want done around their calls."""

    def __init__(self) -> None:
        self.torch: Any = None
        self.known: dict[int, weakref.ref[Any]] = {}
        self.on_root: list[Callable[[Any], None]] = []
        self.around: list[tuple[Context, Output | None]] = []
        self.on_inputs: Callable[[Any, tuple[Any, ...], dict[str, Any]], None] | None = None
        self._searching = False
        self._original: Any = None
        self._depth_owner: int | None = None
        self._inference: Counter[int] = Counter()
        self._patched: set[type] = set()
        self._in_root = False

    def install(self, torch: Any) -> None:
        """Start the search."""
        self.torch = torch
        self._original = torch.nn.Module.__call__
        torch.nn.Module.__call__ = self._watcher(self._original)
        self._searching = True
        CLOCK.listeners.append(self._stepped)

    def modules(self) -> list[Any]:
        """The roots that are still alive."""
        return [m for m in (ref() for ref in self.known.values()) if m is not None]

    # -- the search ----------------------------------------------------------------------------

    def _watcher(self, original: Any) -> Any:
        roots = self
        is_compiling = self.torch.compiler.is_compiling

        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            if roots._depth_owner is not None or is_compiling():
                try:
                    return original(module, *args, **kwargs)
                except BaseException as error:
                    drop_frame(error)
                    raise
            roots._depth_owner = get_ident()
            try:
                call = type(module).__call__ if roots._consider(module, args) else original
                return call(module, *args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
            finally:
                roots._depth_owner = None

        return __call__

    def _consider(self, module: Any, args: tuple[Any, ...]) -> bool:
        """Whether this outermost call is a root's; if so it is one from now on."""
        try:
            if id(module) in self.known:
                return True
            return self._is_root(module) and self._promote(module, args)
        except Exception as error:
            RECORDER.hook_failed("root search", error)
            self._end_search()
            return False

    def _is_root(self, module: Any) -> bool:
        if next(module.parameters(), None) is None:
            return False
        if not (self.torch.is_grad_enabled() and module.training):
            if CLOCK.optimizers or CLOCK.backwards:
                return False
            self._inference[id(module)] += 1
            return self._inference[id(module)] > INFERENCE_CALLS
        mine = {id(p) for p in module.parameters() if p.requires_grad}
        if not mine:
            return False
        stepped = [_parameters(o) for o in CLOCK.optimizers]
        return not stepped or any(len(mine & s) >= COVERAGE * len(s) for s in stepped if s)

    def _promote(self, module: Any, args: tuple[Any, ...]) -> bool:
        for callback in self.on_root:
            callback(module)
        key = id(module)
        self.known[key] = weakref.ref(module, lambda _: self.known.pop(key, None))
        RECORDER.event(_root_event(len(self.known) - 1, module, args))
        self._patch_class(type(module))
        covered = {id(p) for m in self.modules() for p in m.parameters()}
        if all(_parameters(o) <= covered for o in CLOCK.optimizers):
            self._end_search()
        return True

    def _stepped(self, count: int) -> None:
        if self._searching and count >= GIVE_UP_STEPS:
            if not self.known:
                RECORDER.event(
                    TraitEvent(
                        trait="no_root",
                        detail="the model is never called as a module, so its forward "
                        "cannot be timed, cast or compiled",
                    )
                )
            self._end_search()

    def _end_search(self) -> None:
        if self._searching:
            self._searching = False
            self.torch.nn.Module.__call__ = self._original

    # -- a root's own call ---------------------------------------------------------------------

    def _patch_class(self, cls: type) -> None:
        if any(c in self._patched for c in cls.__mro__):
            return
        original: Any = cls.__call__
        if original is self.torch.nn.Module.__call__:
            original = self._original
        cls.__call__ = self._caller(original)  # type: ignore[method-assign]
        self._patched.add(cls)

    def _caller(self, original: Any) -> Any:
        roots, known = self, self.known
        is_compiling = self.torch.compiler.is_compiling
        grad_enabled = self.torch.is_grad_enabled
        tell = guarded("forward", _tell)

        def __call__(module: Any, *args: Any, **kwargs: Any) -> Any:
            if id(module) not in known or roots._in_root or is_compiling():
                try:
                    return original(module, *args, **kwargs)
                except BaseException as error:
                    drop_frame(error)
                    raise
            roots._in_root = True
            began = now()
            try:
                if roots.on_inputs is not None:
                    roots.on_inputs(module, args, kwargs)
                if not roots.around:
                    result = original(module, *args, **kwargs)
                else:
                    result = roots._surrounded(original, module, args, kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
            finally:
                roots._in_root = False
            tell(now() - began, args, kwargs, grad_enabled())
            return result

        return __call__

    def _surrounded(
        self, original: Any, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        try:
            with contextlib.ExitStack() as stack:
                for context, _ in self.around:
                    stack.enter_context(context())
                result = original(module, *args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        for _, output in self.around:
            if output is not None:
                result = output(result)
        return result


def _parameters(optimizer: Any) -> set[int]:
    return {id(p) for group in optimizer.param_groups for p in group["params"]}


def _tell(elapsed: int, args: tuple[Any, ...], kwargs: dict[str, Any], training: bool) -> None:
    samples, tokens = _sizes(args, kwargs)
    CLOCK.forward(elapsed, samples, tokens, training)


def _sizes(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[int, int]:
    """Leading dimension of the first tensor input, and its elements if it is an integer matrix."""
    first = _first_tensor(args, kwargs)
    if first is None or first.dim() == 0:
        return 0, 0
    shape = first.shape
    if len(shape) == 2 and not first.is_floating_point():
        return shape[0], shape[0] * shape[1]
    return shape[0], 0


def _first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    for value in args:
        if hasattr(value, "is_floating_point"):
            return value
    for value in kwargs.values():
        if hasattr(value, "is_floating_point"):
            return value
    for value in args:
        items = value.values() if isinstance(value, dict) else value
        if isinstance(value, (list, tuple, dict)):
            for item in items:
                if hasattr(item, "is_floating_point"):
                    return item
    return None


def _root_event(number: int, module: Any, args: tuple[Any, ...]) -> RootEvent:
    parameters = list(module.parameters())
    first = _first_tensor(args, {})
    return RootEvent(
        root=number,
        class_name=type(module).__name__,
        parameters=sum(p.numel() for p in parameters),
        parameter_bytes=sum(p.numel() * p.element_size() for p in parameters),
        dtypes=tuple(sorted({str(p.dtype).removeprefix("torch.") for p in parameters})),
        device=str(parameters[0].device),
        module_types=dict(Counter(type(m).__name__ for m in module.modules())),
        input_shape=None if first is None else tuple(int(n) for n in first.shape),
        input_dtype=None if first is None else str(first.dtype).removeprefix("torch."),
        compiled=type(module).__name__ == "OptimizedModule"
        or getattr(module, "_compiled_call_impl", None) is not None,
    )


ROOTS = Roots()
"""The roots of this process."""
