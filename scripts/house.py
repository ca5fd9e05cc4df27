"""Print the figures by which the shape of the package is judged: size, rooms, imports, names.

    python scripts/house.py

`FLOORS` is the order of docs/ARCHITECTURE.md from the top: an import goes down or stays, those
inside of functions included. Neighbours on one floor may import each other only where none closes
a circle.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from tests.unit.test_architecture import (  # noqa: E402
    Import,
    Source,
    all_imports,
    cycles,
    read_package,
)

FLOORS: tuple[tuple[str, ...], ...] = (
    ("__main__", "cli"),
    ("commands",),
    ("report",),
    ("bench", "scaling", "tuner", "probing", "doctor"),
    ("trials",),
    ("launch", "isolation"),
    ("runtime",),
    ("knobs",),
    ("measure",),
    ("arguments", "config", "config_tables", "options", "ddp_options", "tuned_arguments"),
    ("mistyped", "stats", "verdict"),
    ("records", "rundir", "errors", "numa"),
)
LONG_FUNCTION = 40
SHARED_NAMES = ("__init__", "api")
TYPED_ZONES = ("gpurun.runtime", "gpurun.knobs")


def floor_of(module: str) -> int | None:
    """The number of a module's floor from the top; None for one that stands on none."""
    room = module.split(".")[1] if "." in module else ""
    return next((number for number, rooms in enumerate(FLOORS) if room in rooms), None)


def upward(imports: list[Import]) -> list[str]:
    """Imports that go up."""
    found = []
    for one in imports:
        ours, theirs = floor_of(one.of), floor_of(one.what)
        if ours is not None and theirs is not None and theirs < ours:
            found.append(f"{one.of} imports {one.what}")
    return sorted(set(found))


def rooms_in_circles(imports: list[Import]) -> list[str]:
    """Circles among the rooms directly below gpurun/."""
    rooms = [
        Import(".".join(i.of.split(".")[:2]), ".".join(i.what.split(".")[:2]), top=True)
        for i in imports
        if i.what.startswith("gpurun.")
    ]
    return cycles(rooms)


def functions(source: Source) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions of a module, nested ones included."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def bare_any(source: Source) -> int:
    """Parameters that are annotated with Any alone."""
    return sum(
        isinstance(argument.annotation, ast.Name) and argument.annotation.id == "Any"
        for function in functions(source)
        for argument in ast.walk(function.args)
        if isinstance(argument, ast.arg)
    )


def public_docstrings(source: Source) -> tuple[int, int]:
    """(with a docstring, all) public modules, classes, functions and methods."""
    nodes: list[ast.AST] = [source.tree]
    for node in nodes:
        for child in getattr(node, "body", ()):
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                if not child.name.startswith("_") and not inside:
                    nodes.append(child)
    told = [node for node in nodes if ast.get_docstring(node)]  # type: ignore[arg-type]
    return len(told), len(nodes)


def long_functions(sources: list[Source]) -> list[str]:
    """Functions of more lines than `LONG_FUNCTION`, longest first."""
    found = [
        ((node.end_lineno or node.lineno) - node.lineno + 1, f"{source.name}.{node.name}")
        for source in sources
        for node in functions(source)
    ]
    return [
        f"{name} ({lines})" for lines, name in sorted(found, reverse=True) if lines > LONG_FUNCTION
    ]


def main() -> int:
    """Print one row a figure, and what stands behind the ones that are to be zero."""
    sources = read_package(REPOSITORY)
    imports = all_imports(sources)
    files = [path.relative_to(REPOSITORY) for path in (REPOSITORY / "gpurun").rglob("*.py")]
    folders = Counter(str(path.parent) for path in files)
    names = Counter(path.stem for path in files if path.stem not in SHARED_NAMES)
    repeated = sorted(name for name, count in names.items() if count > 1)
    up, circles, long = upward(imports), rooms_in_circles(imports), long_functions(sources)
    told, public = (sum(x) for x in zip(*map(public_docstrings, sources), strict=True))
    typed = [s for s in sources if s.name.startswith(TYPED_ZONES)]
    rows = {
        "files in gpurun/": str(len(files)),
        "lines in gpurun/": str(sum(source.text.count("\n") for source in sources)),
        "most files in a folder": ", ".join(f"{n} in {f}" for f, n in folders.most_common(3)),
        "imports upward": str(len(up)),
        "circles of rooms": str(len(circles)),
        "file names that occur more than once": f"{len(repeated)}: {', '.join(repeated)}",
        "bare Any parameters in runtime and knobs": str(sum(map(bare_any, typed))),
        f"functions over {LONG_FUNCTION} lines": f"{len(long)}: {', '.join(long[:5])}",
        "public docstrings": f"{told / public:.1%} of {public}",
    }
    for name, value in rows.items():
        print(f"{name:42} {value}")
    for line in (*up, *circles):
        print(f"  {line}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
