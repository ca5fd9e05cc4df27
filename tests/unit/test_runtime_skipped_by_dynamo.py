"""Dynamo leaves our code alone, also where it stands in for a function of torch."""

from __future__ import annotations

import importlib
import pkgutil
import types
from collections.abc import Iterator

import gpurun.runtime.ddp
from gpurun.runtime.boot.install_hooks import _codes


def functions(module: types.ModuleType) -> Iterator[types.FunctionType]:
    """Its functions and those of its classes, those inside of makers too."""
    held = [value for value in vars(module).values() if isinstance(value, type)]
    for value in [*vars(module).values(), *(x for cls in held for x in vars(cls).values())]:
        while isinstance(value, types.FunctionType):
            if value.__module__ == module.__name__:
                yield value
            value = getattr(value, "__wrapped__", None)


def test_each_function_of_hidden_ranks_is_marked() -> None:
    seen = 0
    for found in pkgutil.iter_modules(gpurun.runtime.ddp.__path__, "gpurun.runtime.ddp."):
        module = importlib.import_module(found.name)
        marked = {c for value in vars(module).values() for c in _codes(value, module.__name__)}
        for function in functions(module):
            if function.__code__.co_filename == module.__file__:
                assert function.__code__ in marked, function.__qualname__
                seen += 1
    assert seen > 100
