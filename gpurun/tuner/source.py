"""Reading the user's script: who else reads the number that is its batch size?"""

from __future__ import annotations

import ast
from pathlib import Path


def other_uses(script: Path, expression: str) -> tuple[str, ...] | None:
    """Lines of `script` that read the batch-size `expression` outside of DataLoader calls.

    A number written out has no other uses. None if the source cannot be read.
    """
    try:
        text = script.read_text(encoding="utf-8")
        tree = ast.parse(text)
        wanted = ast.dump(ast.parse(expression, mode="eval").body)
    except (OSError, SyntaxError, ValueError):
        return None
    if isinstance(ast.parse(expression, mode="eval").body, ast.Constant):
        return ()
    inside = {
        id(node)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and _name(call).endswith("DataLoader")
        for node in ast.walk(call)
    }
    lines = text.splitlines()
    found = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript))
        and isinstance(node.ctx, ast.Load)
        and id(node) not in inside
        and ast.dump(node) == wanted
    ]
    return tuple(f"{script.name}:{n}: {lines[n - 1].strip()[:80]}" for n in sorted(set(found)))


def _name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""
