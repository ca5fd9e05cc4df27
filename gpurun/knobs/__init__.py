"""The knobs: each file of this folder that defines one is found by walking it.

A user's own knobs are files or folders named in the configuration. They are imported as
`gpurun_user_knobs.<file name>`, a name that a spawned child or a compiler worker can import again.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import cast

from gpurun.errors import GpurunError
from gpurun.knobs.api import Knob

USER_PACKAGE = "gpurun_user_knobs"
"""Name of the package that users' knob files are imported into."""


def all_knobs(paths: Sequence[str] = ()) -> tuple[Knob, ...]:
    """Every knob of this folder and of the user's `paths`, in the order in which to try them."""
    knobs: dict[str, Knob] = {}
    for knob in (*_own_knobs(), *_user_knobs(paths)):
        if knob.name in knobs:
            raise GpurunError(
                f"two knobs are named {knob.name!r}",
                f"rename the one in {sys.modules[type(knob).__module__].__file__}",
            )
        knobs[knob.name] = knob
    return tuple(sorted(knobs.values(), key=lambda knob: (knob.order, knob.name)))


def find(name: str, paths: Sequence[str] = ()) -> Knob:
    """The knob called `name`; `GpurunError` suggests the near one if there is none."""
    knobs = {knob.name: knob for knob in all_knobs(paths)}
    if name in knobs:
        return knobs[name]
    near = difflib.get_close_matches(name, knobs, n=1)
    todo = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(knobs)}"
    raise GpurunError(f"there is no knob {name!r}", todo)


def _own_knobs() -> Iterator[Knob]:
    for info in pkgutil.iter_modules(__path__):
        knob = _knob_of(importlib.import_module(f"{__name__}.{info.name}"))
        if knob is not None:
            yield knob


def _user_knobs(paths: Sequence[str]) -> Iterator[Knob]:
    for path in map(Path, paths):
        if path.is_dir():
            found = (_knob_of(_user_module(file)) for file in sorted(path.glob("*.py")))
            yield from (knob for knob in found if knob is not None)
            continue
        if not path.is_file():
            raise GpurunError(f"there is no knob file or folder {path}", "check the knob paths")
        knob = _knob_of(_user_module(path))
        if knob is None:
            raise GpurunError(
                f"{path} defines no knob",
                "give it one public class with the attributes `name` and `effect`",
            )
        yield knob


def _knob_of(module: ModuleType) -> Knob | None:
    """An instance of the one knob class that the module itself defines, if it defines one."""
    classes = [
        value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and not name.startswith("_")
        and value.__module__ == module.__name__
        and isinstance(getattr(value, "name", None), str)
        and hasattr(value, "effect")
    ]
    if len(classes) > 1:
        raise GpurunError(
            f"{module.__file__} defines {len(classes)} knobs", "put each knob into its own file"
        )
    return cast(Knob, classes[0]()) if classes else None


def _user_module(file: Path) -> ModuleType:
    package = sys.modules.get(USER_PACKAGE)
    if package is None:
        package = sys.modules[USER_PACKAGE] = ModuleType(USER_PACKAGE, "Knobs of the user's own.")
        package.__path__ = []
    folder = str(file.resolve().parent)
    if folder not in package.__path__:
        package.__path__.append(folder)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(f"{USER_PACKAGE}.{file.stem}")
    except Exception as error:
        raise GpurunError(
            f"the knob file {file} cannot be imported: {type(error).__name__}: {error}",
            "mend it, or take it out of the knob paths",
        ) from error
    if Path(str(module.__file__)).resolve() != file.resolve():
        raise GpurunError(f"{module.__file__} and {file} have the same name", "rename one of them")
    return module
