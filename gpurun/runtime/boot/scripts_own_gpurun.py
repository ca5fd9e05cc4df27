"""Leaves the name `gpurun` to a module or package of the script's own.

It is imported as under python, for our package is not in `sys.modules` under that name. Our modules
stay there under theirs (`gpurun.knobs`), by which they find one another. But python looks for the
first part of a name whenever `from a.b import c` loads a module c, and would run the script's own
module then: a finder gives our package to our modules, for the time of that search.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType

from gpurun.knobs.callers import caller_past, is_ours

NAME = "gpurun"


def leave_name(own: ModuleSpec) -> None:
    """Forget our package by its name. `ImportError`, and we are gone, where modules clash."""
    import gpurun.errors
    import gpurun.identity_map
    import gpurun.knobs
    import gpurun.numa  # noqa: F401

    package = sys.modules.pop(NAME)
    ours = [name for name in sys.modules if name.startswith(f"{NAME}.")]
    folders = own.submodule_search_locations or ()
    for name in ours:
        if name.count(".") == 1 and PathFinder.find_spec(name, folders) is not None:
            for each in ours:
                del sys.modules[each]
            raise ImportError(f"the script has a module {name} of its own, and so has gpurun")
    sys.meta_path.insert(0, _Finder(package))


class _Finder:
    """Finds our package for our modules, and nothing for others."""

    def __init__(self, package: ModuleType) -> None:
        self._package = package

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Part of the import protocol."""
        if name != NAME or not _is_asked_by_ours():
            return None
        return _PassingSpec(NAME, self)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Part of the import protocol."""
        return self._package

    def exec_module(self, module: ModuleType) -> None:
        """Part of the import protocol: it has run."""


class _PassingSpec(ModuleSpec):
    """Python ends an import by saying that the module is no longer being made."""

    @property
    def _initializing(self) -> bool:
        return False

    @_initializing.setter
    def _initializing(self, value: bool) -> None:
        if not value:
            sys.modules.pop(NAME, None)


def _is_asked_by_ours() -> bool:
    caller = caller_past(sys._getframe(2), _is_import_system)
    return caller is not None and is_ours(caller)


def _is_import_system(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith("<frozen importlib")
