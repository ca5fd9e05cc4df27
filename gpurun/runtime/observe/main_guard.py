"""True if a worker started afresh would run the whole script again: `if __name__ == "__main__"`."""

from __future__ import annotations

import ast
from types import ModuleType

from gpurun.runtime.core.source_syntax import parsed


def lacks_main_guard(main: ModuleType) -> bool:
    """True if the main module is imported by spawned workers and has no guard; False if unknown."""
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name.rpartition(".")[2] == "__main__":
        return False  # `python -m package` and zip files: multiprocessing leaves these alone
    tree = parsed(getattr(main, "__file__", None) or "")
    if tree is None or not tree.body:
        return False
    return not any(_is_guard(node) for node in ast.walk(tree))


def _is_guard(node: ast.AST) -> bool:
    if not isinstance(node, ast.If):
        return False
    inside = list(ast.walk(node.test))
    names = any(isinstance(x, ast.Name) and x.id == "__name__" for x in inside)
    return names and any(isinstance(x, ast.Constant) and x.value == "__main__" for x in inside)
