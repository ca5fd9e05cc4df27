"""Records the modules that a process loads: for trials what a script imports by its first step, so
that later ones import it early; for a side of a comparison the files of its own tree, or of
another.

For the latter each load is seen as it happens. A module may be gone from `sys.modules` at the end
(a plug-in, a file run by runpy), and a process may never come to its end (a loader worker, a killed
rank). A file of another tree is recorded at once, the rest at the end of the process. Code that a
script reads and compiles by itself is not seen. Packages that are installed inside a tree (an
environment in the repository's folder) are not of it.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ExtensionFileLoader, SourceFileLoader
from types import ModuleType
from typing import Any

from gpurun.records.events import ImportsEvent, OriginsEvent
from gpurun.records.frames import transparent
from gpurun.records.spec import Trees
from gpurun.runtime.core.patching import guarded, replace
from gpurun.runtime.core.recorder import RECORDER

PACKAGES = frozenset(
    {
        "PIL", "accelerate", "datasets", "einops", "functorch", "huggingface_hub", "lightning",
        "lightning_fabric", "numpy", "pandas", "pytorch_lightning", "safetensors", "scipy",
        "sklearn", "sympy", "timm", "tokenizers", "torch", "torchaudio", "torchmetrics",
        "torchvision", "transformers", "triton",
    }
)  # fmt: skip
"""Packages that take long to import, and to which it makes no difference when that happens."""
INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
"""Where a module must lie: what the script brings with it is not there for others to import."""
HARMLESS = frozenset({"CUDA_MODULE_LOADING", "PYTORCH_NVML_BASED_CUDA_CHECK"})
"""Torch itself sets the first one when it first uses the device. Lightning sets the second one at
its import, and torch reads it at each call that asks for it (`torch/cuda/__init__.py`)."""

_environment: dict[str, str] = {}


def remember_environment() -> None:
    """Remember the environment before the script runs."""
    _environment.update(os.environ)


def write_imports() -> None:
    """Record the modules, and the environment variables that have changed since then."""
    RECORDER.event(
        ImportsEvent(
            modules=tuple(name for name in list(sys.modules) if _known(name)),
            changed_variables=changed_variables(_environment),
        )
    )


def changed_variables(start: Mapping[str, str]) -> tuple[str, ...]:
    """Environment variables that are not as they were at the start, sorted; no harmless ones."""
    names = (start.keys() | os.environ.keys()) - HARMLESS
    return tuple(sorted(x for x in names if start.get(x) != os.environ.get(x)))


def _known(name: str) -> bool:
    """Packages and what lies directly in them: these import the rest."""
    package, _, rest = name.partition(".")
    if package not in PACKAGES or "." in rest:
        return False
    path = str(getattr(sys.modules[name], "__file__", None))
    return any(place in path for place in INSTALLED)


GPURUN = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
"""Ours is in the process whichever tree is launched."""

OWN, FOREIGN, INSTALLED_THERE, ELSEWHERE = "own", "foreign", "installed", "elsewhere"


class Origins:
    """The files of modules that this process has loaded, by what they belong to."""

    def __init__(self, trees: Trees) -> None:
        self._own = trees.own
        self._roots = sorted((trees.own, *trees.others), key=len, reverse=True)
        inside = (sys.prefix, sys.exec_prefix, sys.base_prefix)
        prefixes = {os.path.realpath(prefix) for prefix in inside}
        self._without = [p for p in prefixes if self._root(p) not in (None, p)]
        self._folders: dict[str, str] = {}
        self._loaded: dict[str, str] = {}
        self._written_foreign: set[str] = set()
        self._ended: set[int] = set()

    def loaded(self, name: str, file: str) -> None:
        """A module is about to be run from `file`."""
        self._loaded[file] = name
        if file not in self._written_foreign and self.belongs(file) == FOREIGN:
            self._written_foreign.add(file)
            self._write(foreign=((name, file),))

    def write(self) -> None:
        """Write, once a process, all that it has loaded; a process that has no record starts none.

        (A loader worker has none; it has written the files of another tree by then.)
        """
        if os.getpid() in self._ended or not RECORDER.recording:
            return
        self._ended.add(os.getpid())
        sorted_out: dict[str, list[tuple[str, str]]] = {OWN: [], FOREIGN: [], INSTALLED_THERE: []}
        modules = {**self._loaded, **_present()}
        for file, name in modules.items():
            where = self.belongs(file)
            if where in (OWN, FOREIGN) or (where == INSTALLED_THERE and "." not in name):
                sorted_out[where].append((name, file))
        self._write(**{key: tuple(value) for key, value in sorted_out.items()}, complete=True)

    def belongs(self, file: str) -> str:
        """The owner of a file. Each folder is examined once: torch alone loads 2,000 files."""
        folder = os.path.dirname(file)
        where = self._folders.get(folder)
        if where is None:
            where = self._folders[folder] = self._of(os.path.realpath(folder))
        if where != INSTALLED_THERE and os.path.islink(file):
            return self._of(os.path.realpath(file))
        return where

    def _of(self, path: str) -> str:
        if _below(path, GPURUN):
            return ELSEWHERE
        root = self._root(path)
        if any(place in path + os.sep for place in INSTALLED):
            return INSTALLED_THERE
        if root is None or any(_below(path, prefix) for prefix in self._without):
            return ELSEWHERE
        return OWN if root == self._own else FOREIGN

    def _root(self, path: str) -> str | None:
        """The innermost tree that holds a path."""
        return next((root for root in self._roots if _below(path, root)), None)

    def _write(
        self,
        own: tuple[tuple[str, str], ...] = (),
        foreign: tuple[tuple[str, str], ...] = (),
        installed: tuple[tuple[str, str], ...] = (),
        complete: bool = False,
    ) -> None:
        search_path = tuple(map(str, sys.path))
        RECORDER.event(OriginsEvent(own, foreign, installed, search_path, complete))


_ORIGINS: list[Origins] = []


def watch(trees: Trees) -> None:
    """Watch every load from now on."""
    import runpy

    origins = Origins(trees)
    _ORIGINS.append(origins)
    seen = guarded("origins", origins.loaded)
    replace(SourceFileLoader, "get_code", lambda original: _by_loader(original, seen))
    replace(ExtensionFileLoader, "create_module", lambda original: _by_loader(original, seen))
    replace(runpy, "_get_code_from_file", lambda original: _by_runpy(original, seen))
    atexit.register(write_all)


def write_all() -> None:
    """Write the loaded files, if `watch` was called."""
    for origins in _ORIGINS:
        guarded("origins", origins.write)()


def _by_loader(
    original: Callable[..., Any], seen: Callable[[str, str], None]
) -> Callable[..., Any]:
    @transparent
    def load(loader: object, *args: object, **kwargs: object) -> Any:
        seen(getattr(loader, "name", ""), getattr(loader, "path", ""))
        return original(loader, *args, **kwargs)

    return load


def _by_runpy(original: Callable[..., Any], seen: Callable[[str, str], None]) -> Callable[..., Any]:
    @transparent
    def get_code(*args: Any, **kwargs: object) -> Any:
        seen("", os.path.abspath(os.fsdecode(args[-1])))  # the argument before the file is its name
        return original(*args, **kwargs)

    return get_code


def _present() -> dict[str, str]:
    """File and name of what is in `sys.modules`: the script itself is loaded by no loader."""
    found: dict[str, str] = {}
    for name, module in list(sys.modules.items()):
        file = module.__dict__.get("__file__") if isinstance(module, ModuleType) else None
        if isinstance(file, str):
            found.setdefault(file, name)
    return found


def _below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip(os.sep) + os.sep)
