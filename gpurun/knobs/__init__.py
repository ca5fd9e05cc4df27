"""The knobs: each file below this folder that defines one is found by walking it.

A user's own knobs are files or folders named in the configuration. They are imported as
`gpurun_user_knobs.<file name>`, a name that a spawned child or a compiler worker can import again.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib.machinery import FileFinder, ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, cast

from gpurun.errors import GpurunError
from gpurun.knobs.api import Effect, Knob
from gpurun.knobs.script_argument import argument_called, script_argument
from gpurun.knobs.stages import STAGES
from gpurun.records.script_arguments import TunedArgument

USER_PACKAGE = "gpurun_user_knobs"
"""Name of the package that users' knob files are imported into."""
NAMED_BY = "`knobs` in gpurun.toml or pyproject.toml"
"""Where the paths of a user's own knobs come from; no flag names any."""
APPLIED = "applied"
"""Name of the folders whose modules are loaded when a knob is applied, after torch."""
ACTS_ON = ("data", "model", "optimizer", "step")
METHODS = (
    "candidates", "apply", "refine", "companions", "is_likely", "environment",
    "arguments", "source_forms",
)  # fmt: skip


def all_knobs(paths: Sequence[str] = (), tuned: Sequence[TunedArgument] = ()) -> tuple[Knob, ...]:
    """All knobs, in the order in which to try them: those below this folder, those of the user's
    `paths`, and one for each of the script's `tuned` arguments."""
    knobs: dict[str, Knob] = {}
    for knob in (*_own_knobs(), *_user_knobs(paths), *map(script_argument, tuned)):
        if knob.name in knobs:
            raise GpurunError(
                f"two knobs are named {knob.name!r}",
                f"rename the one in {sys.modules[type(knob).__module__].__file__}",
            )
        knobs[knob.name] = knob
    return tuple(sorted(knobs.values(), key=lambda knob: (knob.order, knob.name)))


def find(name: str, paths: Sequence[str] = (), tuned: Sequence[TunedArgument] = ()) -> Knob:
    """The knob called `name`; `GpurunError` suggests the near one if there is none.

    An argument of the script has a knob whether or not it is among the `tuned`.
    """
    argument = argument_called(name, tuned)
    if argument is not None:
        return script_argument(argument)
    knobs = {knob.name: knob for knob in all_knobs(paths)}
    if name in knobs:
        return knobs[name]
    near = difflib.get_close_matches(name, knobs, n=1)
    todo = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(knobs)}"
    raise GpurunError(f"there is no knob {name!r}", todo)


def is_users(knob: Knob) -> bool:
    """True of a knob of the user's own files."""
    return type(knob).__module__.startswith(f"{USER_PACKAGE}.")


def _own_knobs() -> Iterator[Knob]:
    for module in _knob_files(__path__, f"{__name__}."):
        knob = _knob_of(importlib.import_module(module))
        if knob is not None:
            yield knob


def _knob_files(folders: Iterable[str], package: str) -> Iterator[str]:
    """The modules below a package that may define a knob: all but those in a folder `applied`."""
    for info in pkgutil.iter_modules(folders, package):
        if not info.ispkg:
            yield info.name
        elif not info.name.endswith(f".{APPLIED}"):
            yield from _knob_files(importlib.import_module(info.name).__path__, f"{info.name}.")


def _user_knobs(paths: Sequence[str]) -> Iterator[Knob]:
    try:
        yield from _knobs_at(paths)
    except GpurunError as error:
        raise GpurunError(f"{NAMED_BY}: {error.what}", error.todo) from error


def _knobs_at(paths: Sequence[str]) -> Iterator[Knob]:
    for path in map(Path, paths):
        if path.is_dir():
            found = (_knob_of(_user_module(file)) for file in sorted(path.glob("*.py")))
            yield from (knob for knob in found if knob is not None)
            continue
        if not path.is_file():
            raise GpurunError(
                f"there is no knob file or folder {path}", "correct the path there, or take it out"
            )
        knob = _knob_of(_user_module(path))
        if knob is None:
            raise GpurunError(
                f"{path} defines no knob",
                "give it one public class with the attributes `name` and `effect`",
            )
        yield knob


def _knob_of(module: ModuleType) -> Knob | None:
    """An instance of the one knob class that the module itself defines, if it defines one."""
    own = [
        value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and not name.startswith("_")
        and value.__module__ == module.__name__
        and _is_meant_as_knob(value)
    ]
    classes = [cls for cls in own if hasattr(cls, "name") or hasattr(cls, "effect")] or own
    if not classes:
        return None
    if len(classes) > 1:
        raise GpurunError(
            f"{module.__file__} defines {len(classes)} knobs", "put each knob into its own file"
        )
    return _built(classes[0], str(module.__file__))


def _is_meant_as_knob(cls: type) -> bool:
    """True if a class is so much like a knob that a missing part is a mistake."""
    if cls is Knob:
        return False
    return (
        issubclass(cls, Knob)
        or (hasattr(cls, "name") and hasattr(cls, "effect"))
        or (hasattr(cls, "candidates") and hasattr(cls, "apply"))
    )


def _built(cls: type, file: str) -> Knob:
    fault = _fault(cls)
    if fault is None:
        try:
            return cast(Knob, cls())
        except Exception as error:
            fault = (f"cannot be built: {_one_line(error)}", "let it take no arguments")
    what, todo = fault
    raise GpurunError(f"{file}: the knob {cls.__name__} {what}", todo)


def _fault(cls: type[Any]) -> tuple[str, str] | None:
    """The first fault that keeps a class from being a knob, and the cure."""
    if not issubclass(cls, Knob):
        return "is none to gpurun", "inherit it from gpurun.knobs.api.Knob"
    missing = [part for part in ("name", "effect") if not hasattr(cls, part)]
    for part in (*missing, *sorted(cls.__abstractmethods__)):
        return f"has no `{part}`", "gpurun/knobs/api.py says what each part of a knob is for"
    if not (isinstance(cls.name, str) and cls.name.isidentifier()):
        return (
            f"has the `name` {cls.name!r}, no identifier",
            "write letters, digits and underscores",
        )
    if not isinstance(cls.effect, Effect):
        choices = ", ".join(str(effect) for effect in Effect)
        return f"has the `effect` {cls.effect!r}, no member of Effect", f"write one of {choices}"
    for part in ("order", "most_values"):
        if not isinstance(getattr(cls, part), int | float):
            return f"has the `{part}` {getattr(cls, part)!r}, no number", "write a number"
    if not isinstance(cls.stage, str) or cls.stage not in ("", *STAGES):
        return f"has the `stage` {cls.stage!r}", f"write one of {', '.join(STAGES)}"
    if cls.acts_on not in ACTS_ON:
        return f"has the `acts_on` {cls.acts_on!r}", f"write one of {', '.join(ACTS_ON)}"
    for part in METHODS:
        if not callable(getattr(cls, part)):
            return f"has a `{part}` that is no method", f"define `def {part}(self, ...)`"
    return None


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


class _FromSource(SourceFileLoader):
    """Compiles a knob file anew: somebody else may have laid what lies in its `__pycache__`."""

    def get_code(self, fullname: str) -> CodeType:
        """The code of the source text."""
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class _KnobFinder:
    """Finds knob files, and modules beside them that they import."""

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The place of a module; None leaves it to Python: a folder without `__init__.py`."""
        if not name.startswith(f"{USER_PACKAGE}."):
            return None
        finders = (FileFinder(folder, (_FromSource, [".py"])) for folder in path or ())
        found = (finder.find_spec(name) for finder in finders)
        return next((spec for spec in found if spec is not None and spec.loader is not None), None)


def _user_module(file: Path) -> ModuleType:
    package = sys.modules.get(USER_PACKAGE)
    if package is None:
        package = sys.modules[USER_PACKAGE] = ModuleType(USER_PACKAGE, "Knobs of the user's own.")
        package.__path__ = []
        if _KnobFinder not in sys.meta_path:
            sys.meta_path.insert(0, _KnobFinder)
    folder = str(file.resolve().parent)
    if folder not in package.__path__:
        package.__path__.append(folder)
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(f"{USER_PACKAGE}.{file.stem}")
    except (Exception, SystemExit) as error:
        raise GpurunError(
            f"the knob file {file} cannot be imported: {_one_line(error)}",
            "fix it, or take it out there",
        ) from error
    if Path(str(module.__file__)).resolve() != file.resolve():
        raise GpurunError(f"{module.__file__} and {file} have the same name", "rename one of them")
    return module
