"""The syntax of the user's source, read in the user's process, unheard: a loader's batch size."""

from __future__ import annotations

import ast
import functools
import linecache
import warnings


def parsed(file: str) -> ast.Module | None:
    """The syntax tree of a file, None if it cannot be read as python.

    The parser warns of invalid escapes, which python said when it compiled the file or keeps to
    itself. `warnings.catch_warnings` would make python forget which other warnings it has shown,
    so that the script's would come again: only the list of filters is exchanged.
    """
    source = "".join(linecache.getlines(file))
    filters = warnings.filters
    warnings.filters = [("ignore", None, Warning, None, 0)]
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    finally:
        warnings.filters = filters


@functools.lru_cache(maxsize=64)  # a loader may be built again each epoch
def batch_size_expression(file: str, line: int) -> str | None:
    """Source of the batch-size argument of the call around `line`, or None if it is not there."""
    tree = parsed(file)
    if tree is None:
        return None
    best: ast.Call | None = None
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.lineno <= line <= (node.end_lineno or node.lineno):
            if best is None or node.lineno >= best.lineno:
                best = _with_batch_size(node) or best
    return None if best is None else _argument(best)


def _with_batch_size(call: ast.Call) -> ast.Call | None:
    return call if _argument(call) is not None else None


def _argument(call: ast.Call) -> str | None:
    for keyword in call.keywords:
        if keyword.arg == "batch_size":
            return ast.unparse(keyword.value)
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name.endswith("DataLoader") and len(call.args) > 1:
        return ast.unparse(call.args[1])
    return None
