"""A slow-down planted in the text of a tree: one line in a file that the training loads.

Only ever in the worktree that was made for the selftest, which goes with all that is in it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from gpurun.bench.trees.installed_packages import Tree
from gpurun.errors import ExitCode, GpurunError
from gpurun.records.events import OriginsEvent

LINE = (
    '__import__("gpurun.runtime.trial.planted_delay", fromlist=["plant"])'
    ".plant({seconds!r}, __file__)"
    "  # gpurun bench selftest\n"
)
"""Asks the runtime, which is in the process already, to delay every step from now on."""
MAIN = "__main__"


def plant_in_tree(
    tree: Tree, script: Path, origins: Iterable[OriginsEvent], seconds: float
) -> Path:
    """Plant `seconds` a step in a file of `tree` that launches load, and return the file.

    `origins`: what a launch of this tree loaded; the first module counts, since it is sure to be
    there before the first step. Where only the `script` itself is of the tree, it is the file.
    `GpurunError` where no file takes the line.
    """
    for path in filter(tree.holds, (*_modules(tree, origins), script)):
        try:
            text = path.read_bytes()
            slowed = _with_line(text, LINE.format(seconds=seconds).encode())
            path.write_bytes(slowed)
        except (OSError, SyntaxError, ValueError):
            continue
        return path
    raise GpurunError(
        f"no file of {tree.root} could be slowed down: the training loads no python file of it",
        "name a script of the repository, or one that imports a module of it",
        ExitCode.BENCHMARK_FAILED,
    )


def _modules(tree: Tree, origins: Iterable[OriginsEvent]) -> Iterator[Path]:
    """The modules that were loaded, in their order; an empty `__init__.py` says nothing."""
    files = (Path(file) for event in origins for name, file in event.own if name not in ("", MAIN))
    for path in dict.fromkeys(files):
        if path.suffix == ".py" and tree.holds(path) and path.is_file() and path.stat().st_size:
            yield path.resolve()


def _with_line(text: bytes, line: bytes) -> bytes:
    """The text of a module with a line of ours where code may first stand.

    The line goes after its docstring and its imports from `__future__`. `SyntaxError` and
    `ValueError` where the text is no python, or would be none any more.
    """
    after = 0
    for number, statement in enumerate(ast.parse(text).body):
        docstring = number == 0 and isinstance(statement, ast.Expr)
        future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        if not (docstring or future):
            break
        after = statement.end_lineno or after
    lines = text.splitlines(keepends=True)
    if not after:  # nothing stands before the code but comments, of which one may name the encoding
        after = next((n for n, word in enumerate(lines) if not word.startswith(b"#")), len(lines))
    before = b"".join(lines[:after])
    if before and not before.endswith((b"\n", b"\r")):
        before += b"\n"
    slowed = before + line + b"".join(lines[after:])
    compile(slowed, "<slowed>", "exec", dont_inherit=True)
    return slowed
