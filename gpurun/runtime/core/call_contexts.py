"""Contexts of knobs around the calls of roots: one that raises is left out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch.nn import Module

from gpurun.records.frames import drop_frame
from gpurun.runtime.core.recorder import RECORDER

Context = Callable[[], AbstractContextManager[Any]]
Map = Callable[[Any], Any]
Failed = Callable[[Exception], None]
Entry = tuple[str, Context, Map | None, Failed, Map | None]


class CallContexts:
    """The contexts of knobs around each root call, in the order in which they were added."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def add(
        self,
        name: str,
        context: Context,
        output: Map | None,
        failed: Failed,
        inputs: Map | None = None,
    ) -> None:
        """Run root calls inside `context()` and map what they return by `output`.

        `inputs` maps the pair of their arguments. If one raises, `failed` is called with the error.
        """
        self.entries.append((name, context, output, failed, inputs))

    def remove(self, name: str) -> None:
        """Take out the entries of this name."""
        self.entries = [entry for entry in self.entries if entry[0] != name]

    def call(
        self,
        original: Callable[..., Any],
        module: Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """`original(module, *args, **kwargs)` inside every context."""
        entered = self._enter()
        for entry, _ in entered:
            args, kwargs = self._map(entry, entry[4], (args, kwargs))
        try:
            result = original(module, *args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            self._leave(entered, sys.exc_info())
            raise
        self._leave(entered, (None, None, None))
        for entry, _ in entered:
            result = self._map(entry, entry[2], result)
        return result

    def _enter(self) -> list[tuple[Entry, Any]]:
        entered: list[tuple[Entry, Any]] = []
        for entry in list(self.entries):
            try:
                manager = entry[1]()
                manager.__enter__()
            except Exception as error:
                self._drop(entry, error)
            else:
                entered.append((entry, manager))
        return entered

    def _leave(self, entered: list[tuple[Entry, Any]], how: tuple[Any, Any, Any]) -> None:
        for entry, manager in reversed(entered):
            try:
                manager.__exit__(*how)
            except Exception as error:
                if error is not how[1]:  # a context written as a generator raises it again
                    self._drop(entry, error)

    def _map(self, entry: Entry, change: Map | None, value: Any) -> Any:
        if change is None or entry not in self.entries:
            return value
        try:
            return change(value)
        except Exception as error:
            self._drop(entry, error)
            return value

    def _drop(self, entry: Entry, error: Exception) -> None:
        if entry in self.entries:
            self.entries.remove(entry)
        RECORDER.hook_failed(entry[0], error)
        entry[3](error)
