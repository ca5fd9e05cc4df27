"""Trials load torch's compiler only when it is used.

Since torch 2.2 the first step of an optimizer imports `torch._dynamo`, to keep dynamo out of
functions of the optimizer (`torch/_compile.py`, `torch/optim/optimizer.py`). That takes 1.5 s of
two at a start on a slow core, and 65 MiB, though nothing is compiled. In a trial a stand-in takes
its place. It knows the two functions that are called there, which do nothing as long as dynamo is
not loaded, and loads dynamo for whatever else is asked of it. A training is not touched.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"


class LateDynamo(ModuleType):
    """Stands for `torch._dynamo` until something other than the following is asked for."""

    def graph_break(self, msg: str = "") -> None:
        """Nothing is compiled: there is no graph to break."""

    def disable(self, fn: Any = None, recursive: bool = True, **more: Any) -> Any:
        """`torch._dynamo.disable`; torch's own functions need it only once dynamo is loaded.

        They say `wrapping=False`. What a script disables may be a class or a module: dynamo's turn.
        """
        if fn is None or more.get("wrapping", True):
            return _load().disable(fn, recursive, **more)
        return _Undisturbed(fn, recursive, more)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # `inspect` and the import system ask each module for them
            raise AttributeError(name)
        return getattr(_load(), name)


class _Undisturbed:
    """A function that dynamo leaves alone, once it is loaded."""

    def __init__(self, fn: Callable[..., Any], recursive: bool, more: dict[str, Any]) -> None:
        self._fn, self._recursive, self._more = fn, recursive, more
        self._disabled: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._disabled is None:
            dynamo: Any = sys.modules[NAME]
            if isinstance(dynamo, LateDynamo):
                return self._fn(*args, **kwargs)
            self._disabled = dynamo.disable(self._fn, self._recursive, **self._more)
        return self._disabled(*args, **kwargs)


class _Finder:
    """Finds the stand-in for the first that imports the module, and torch's own for the next.

    Who imports a module below it loads dynamo, and with it often that module: then that one is
    handed out, because a second copy would have settings of its own.
    """

    def __init__(self) -> None:
        self._gave = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Part of the import protocol."""
        if name == NAME and NAME not in sys.modules and not self._gave:
            self._gave = True
            return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]
        if not name.startswith(NAME + ".") or not isinstance(sys.modules[NAME], LateDynamo):
            return None
        _load()
        if name in sys.modules:
            module = sys.modules[name]
            spec = ModuleSpec(name, _Loaded(module))  # type: ignore[arg-type]
            # importlib goes by the one of a module that is there by now; a module of settings takes
            # no attribute
            vars(module)["__spec__"] = spec
            return spec
        return find_spec(name)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Part of the import protocol."""
        return LateDynamo(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Part of the import protocol: the stand-in is ready as it is."""


class _Loaded:
    """A loader that hands out a module which is loaded already, as it is."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Part of the import protocol."""
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        """Part of the import protocol: it takes back what the import has set."""
        vars(module)["__spec__"] = self._spec


FINDER = _Finder()


def install() -> None:
    """Let the next import of `torch._dynamo` give the stand-in, unless it is loaded already."""
    if NAME not in sys.modules and FINDER not in sys.meta_path:
        sys.meta_path.insert(0, FINDER)


def _load() -> ModuleType:
    if isinstance(sys.modules.get(NAME), LateDynamo):
        del sys.modules[NAME]
    return importlib.import_module(NAME)
