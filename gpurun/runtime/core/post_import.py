"""Call back once a module has been imported.

wrapt's `when_imported` does the same but costs 25 to 90 ms to import, more than the whole launch
may; this finder is the part of it that is needed. A call-back that raises never fails the import.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from gpurun.records.frames import drop_frame
from gpurun.runtime.core.recorder import RECORDER

Callback = Callable[[ModuleType], None]


class PostImportFinder:
    """A meta path finder that lets the others find a module and runs call-backs after its body.

    It is on the meta path only while something is waited for.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, list[Callback]] = {}
        self._searching: set[str] = set()

    def when_imported(self, name: str, callback: Callback) -> None:
        """Call `callback(module)` after the body of module `name` has run; at once if it has."""
        module = sys.modules.get(name)
        spec = getattr(module, "__spec__", None)
        if module is not None and not getattr(spec, "_initializing", False):
            _call(callback, module)
            return
        self._waiting.setdefault(name, []).append(callback)
        if self not in sys.meta_path:
            sys.meta_path.insert(0, self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Part of the import protocol: the spec that the finders after us give, watched."""
        if name not in self._waiting or name in self._searching:
            return None
        self._searching.add(name)
        try:
            for finder in list(sys.meta_path):
                find = getattr(finder, "find_spec", None)
                spec = find(name, path, target) if find and finder is not self else None
                if spec is not None:
                    self._watch(spec)
                    return spec  # type: ignore[no-any-return]
        except BaseException as error:
            drop_frame(error)
            raise
        finally:
            self._searching.discard(name)
        return None

    def _watch(self, spec: ModuleSpec) -> None:
        loader: Any = spec.loader
        if isinstance(loader, type) or not hasattr(loader, "exec_module"):
            return  # the class of built-in modules, shared by all of them, or no loader at all
        run = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            try:
                del loader.exec_module
            except AttributeError:
                loader.exec_module = run
            try:
                run(module)
            except BaseException as error:
                drop_frame(error)
                raise
            self._imported(spec.name, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            return  # a loader that cannot be watched: the record shows that nothing was seen

    def _imported(self, name: str, module: ModuleType) -> None:
        while name in self._waiting:  # a call-back may register a further one
            for callback in self._waiting.pop(name):
                _call(callback, module)
        if not self._waiting and self in sys.meta_path:
            sys.meta_path.remove(self)


def _call(callback: Callback, module: ModuleType) -> None:
    try:
        callback(module)
    except Exception as error:
        RECORDER.hook_failed(f"import of {module.__name__}", error)


FINDER = PostImportFinder()
when_imported = FINDER.when_imported
