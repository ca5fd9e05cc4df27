"""Print the figures by which the shape of the package is judged: size, rooms, imports, names.

    python scripts/house.py             the figures
    python scripts/house.py --picture   the floors as docs/ARCHITECTURE.md shows them

The order of the floors stands in tests/unit/test_architecture.py. An import goes down, those inside
of functions included.
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
    floor_faults,
    floors_picture,
    read_package,
    repeated_names,
)

LONG_FUNCTION = 40
NUMBERS = (int, float)
TYPED_ZONES = ("gpurun.runtime", "gpurun.knobs")


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


def set_by_hand(source: Source) -> int:
    """Constants of a module, or of a class in it, that are numbers a person has chosen."""
    nodes = [source.tree, *(n for n in ast.walk(source.tree) if isinstance(n, ast.ClassDef))]
    values = [
        child.value
        for node in nodes
        for child in node.body
        if isinstance(child, ast.Assign | ast.AnnAssign)
    ]
    return sum(value is not None and _is_number(value) for value in values)


def _is_number(value: ast.expr) -> bool:
    """True for a number, or a sum, a product or a tuple of numbers alone."""
    leaves = [node for node in ast.walk(value) if isinstance(node, ast.Constant | ast.Name)]
    allowed = (ast.Constant, ast.BinOp, ast.UnaryOp, ast.Tuple, ast.operator, ast.unaryop, ast.Load)
    plain = all(isinstance(node, allowed) for node in ast.walk(value))
    return plain and bool(leaves) and all(type(getattr(n, "value", "")) in NUMBERS for n in leaves)


def compared_literals(source: Source) -> int:
    """Numbers other than 0, 1 and 2 that something is compared with."""
    return sum(
        isinstance(side, ast.Constant)
        and type(side.value) in NUMBERS
        and side.value not in (0, 1, 2)
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Compare)
        for side in (node.left, *node.comparators)
    )


def shared_class_names(sources: list[Source]) -> list[str]:
    """Names of classes that several modules define."""
    names = Counter(
        node.name
        for source in sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef)
    )
    return sorted(name for name, count in names.items() if count > 1)


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
    if "--picture" in sys.argv[1:]:
        print(floors_picture())
        return 0
    sources = read_package(REPOSITORY)
    imports = all_imports(sources)
    files = [path.relative_to(REPOSITORY) for path in (REPOSITORY / "gpurun").rglob("*.py")]
    folders = Counter(str(path.parent) for path in files)
    repeated = repeated_names(sources)
    up, circles, long = (
        floor_faults(imports),
        rooms_in_circles(imports),
        long_functions(sources),
    )
    classes = shared_class_names(sources)
    tests = [path.read_text(encoding="utf-8") for path in (REPOSITORY / "tests").rglob("*.py")]
    told, public = (sum(x) for x in zip(*map(public_docstrings, sources), strict=True))
    typed = [s for s in sources if s.name.startswith(TYPED_ZONES)]
    rows = {
        "files in gpurun/": str(len(files)),
        "lines in gpurun/": str(sum(source.text.count("\n") for source in sources)),
        "lines in tests/": str(sum(text.count("\n") for text in tests)),
        "most files in a folder": ", ".join(f"{n} in {f}" for f, n in folders.most_common(3)),
        "imports upward": str(len(up)),
        "circles of rooms": str(len(circles)),
        "circles of modules, lazy imports counted": str(len(cycles(imports))),
        "numbers set by hand": (
            f"{sum(map(set_by_hand, sources))} constants, "
            f"{sum(map(compared_literals, sources))} literals in comparisons"
        ),
        "class names of several classes": f"{len(classes)}: {', '.join(classes)}",
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
