"""Methods of a class that are replaced for a while, and are as they were afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpurun.runtime.core.patching import replace


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
