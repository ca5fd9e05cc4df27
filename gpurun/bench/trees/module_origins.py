"""Did each side run its own tree? The records of its processes' modules answer this.

A comparison in which both sides import one tree finds no difference, whatever was changed. Causes
are an editable install (`pip install -e .` points at one tree), a copy (`pip install .`), and an
absolute path in a script or in PYTHONPATH.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpurun.bench.trees.installed_packages import (
    Install,
    Tree,
    copies,
    editable_installs,
    site_folders,
)
from gpurun.bench.trees.prepared_sides import Side, Sides
from gpurun.errors import ExitCode, GpurunError
from gpurun.measure.fingerprint import INSTALLED
from gpurun.records.events import OriginsEvent

INSTALL_EACH = (
    'add setup = "pip install -e ." to [bench], which installs each side into an environment '
    'of its own, or env = { PYTHONPATH = "%s" }'
)
OWN_PLACE = "have it start from its own place, as in Path(__file__).parent, so each side finds"


@dataclass(frozen=True)
class WrongOrigin:
    """A module that a side loaded from elsewhere than its tree. `cause`: what led python there.

    `cause` is None where no installed file does: then the script itself or a variable.
    """

    module: str
    file: Path
    search_path: tuple[str, ...]
    cause: Install | None


def check_origins(sides: Sides, side: Side, events: Iterable[OriginsEvent]) -> None:
    """`GpurunError` (exit code 5) unless a launch of `side` is proven to have run its own tree.

    `events`: those of all its processes. Read while both trees are there: links are followed.
    """
    told = list(events)
    wrong = next(wrong_origins(sides, side, told), None)
    if wrong is not None:
        raise _failed(_what(wrong, sides, side), _cure(wrong, sides, side))
    if not any(event.complete for event in told):
        raise _failed(
            f"the {side.name} side has no record of its imports: nothing proves that it ran its "
            "own tree",
            "see its output: a script that is killed, or python -I in a child, leaves no record",
        )


def wrong_origins(
    sides: Sides, side: Side, events: Iterable[OriginsEvent]
) -> Iterator[WrongOrigin]:
    """The modules that a launch of `side` loaded from another tree, or from an installed copy."""
    for event in events:
        places = site_folders(event.search_path)
        for module, file in event.foreign:
            yield WrongOrigin(module, Path(file), event.search_path, _editable(file, sides, places))
        found = [copy for tree in _trees(sides) for copy in copies(places, tree)]
        for module, file in event.installed:
            for copy in found:
                if Path(file) in copy.files and not _made_by_setup(copy, side):
                    yield WrongOrigin(module, Path(file), event.search_path, copy)


def _trees(sides: Sides) -> tuple[Tree, ...]:
    return tuple(dict.fromkeys((sides.baseline.tree, sides.current.tree, sides.users)))


def _editable(file: str, sides: Sides, places: list[Path]) -> Install | None:
    """The installed file that leads to the tree of `file`, one that holds `file` first."""
    tree = next((tree for tree in _trees(sides) if tree.holds(file)), None)
    if tree is None:
        return None
    found = editable_installs(places, tree)
    return next((one for one in found if Tree(one.source).holds(file)), None)


def _made_by_setup(copy: Install, side: Side) -> bool:
    """True if a copy is of the side's own tree, made for this comparison."""
    environment = side.environment
    mine = environment is not None and copy.file.is_relative_to(environment)
    return mine and side.tree.holds(copy.source)


def _what(wrong: WrongOrigin, sides: Sides, side: Side) -> str:
    what = f"the {side.name} side loaded {wrong.module or 'a script'} from {wrong.file}, which is "
    if wrong.cause is not None and wrong.cause.files:
        return f"{what}an installed copy ({wrong.cause.file}) and not its own tree {side.tree.root}"
    owners = {sides.baseline.tree: "baseline's tree", sides.current.tree: "current tree"}
    others = {**owners, sides.users: "user's tree" if sides.users not in owners else "current tree"}
    whose = next((name for tree, name in others.items() if tree.holds(wrong.file)), "other tree")
    return f"{what}the {whose}, not its own {side.tree.root}"


def _cure(wrong: WrongOrigin, sides: Sides, side: Side) -> str:
    install_each = INSTALL_EACH % _import_root(wrong, sides, side)
    if wrong.cause is not None:
        kind = "a copy" if wrong.cause.files else "an editable install"
        return f"{wrong.cause.file} ({kind}) leads there: {install_each}"
    if any(part in INSTALLED for part in wrong.file.parts):
        return f"{wrong.file} is a link into that tree: {install_each}"
    named = side.variables.get("PYTHONPATH", "").split(os.pathsep)
    for entry in wrong.search_path:
        if wrong.file.is_relative_to(entry) and any(tree.holds(entry) for tree in _trees(sides)):
            if entry in named:
                return f"PYTHONPATH names {entry}: make that relative to where the script starts"
            return f"something puts {entry} into sys.path by that absolute path: {OWN_PLACE} it"
    return f"something loads it by that absolute path: {OWN_PLACE} it"


def _import_root(wrong: WrongOrigin, sides: Sides, side: Side) -> str:
    """The folder that PYTHONPATH would have to name, from where launches start: ".", "src"."""
    start = side.folder.relative_to(side.tree.root)
    file = wrong.file.resolve()
    levels = wrong.module.count(".") + (file.name == "__init__.py")
    tree = next((tree for tree in _trees(sides) if tree.holds(file)), None)
    if tree is not None:
        return os.path.relpath(file.parents[levels], tree.root.resolve() / start)
    src = (side.tree.root / "src" / wrong.module).exists()
    return os.path.relpath("src" if src else ".", start)


def _failed(what: str, todo: str) -> GpurunError:
    return GpurunError(what, todo, ExitCode.BENCHMARK_FAILED)
