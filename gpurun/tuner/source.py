"""Reading the user's script: who else reads the number that is its batch size?"""

from __future__ import annotations

import ast
from pathlib import Path

READ = (ast.Name, ast.Attribute, ast.Subscript)


def other_uses(script: Path, expression: str) -> tuple[str, ...] | None:
    """Lines of `script` that read the batch-size `expression` outside of DataLoader calls.

    Where the expression is a name, what was assigned to it counts too (`bs = args.batch_size`). A
    number written out has no other uses. None if the source cannot be read.
    """
    try:
        text = script.read_text(encoding="utf-8")
        tree = ast.parse(text)
        wanted = ast.parse(expression, mode="eval").body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    if isinstance(wanted, ast.Constant):
        return ()
    names, passed_on = _origins(tree, wanted)
    inside = passed_on | {
        id(node)
        for call in ast.walk(tree)
        if isinstance(call, ast.Call) and _name(call).endswith("DataLoader")
        for node in ast.walk(call)
    }
    lines = text.splitlines()
    found = {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, READ)
        and isinstance(node.ctx, ast.Load)
        and id(node) not in inside
        and ast.dump(node) in names
    }
    return tuple(f"{script.name}:{n}: {lines[n - 1].strip()[:80]}" for n in sorted(found))


def _origins(tree: ast.AST, wanted: ast.expr) -> tuple[set[str], set[int]]:
    """All expressions that hold the number, and the nodes that merely hand it on."""
    names, passed_on = {ast.dump(wanted)}, set()
    values = {
        ast.dump(ast.Name(target.id, ast.Load())): node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    current = ast.dump(wanted)
    while isinstance(value := values.pop(current, None), READ):
        passed_on.add(id(value))
        current = ast.dump(value)
        names.add(current)
    return names, passed_on


def _name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""
