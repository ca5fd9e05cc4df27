"""Finds lines of the user's script that read its batch size outside of a DataLoader."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TypeGuard

READ = (ast.Name, ast.Attribute, ast.Subscript)


def batch_size_uses(script: Path, expression: str) -> tuple[str, ...] | None:
    """Lines of `script` that read the batch-size `expression` outside of DataLoader calls.

    Where the expression is a name, what was assigned to it counts too (`bs = args.batch_size`). An
    attribute counts under any object (`cfg.batch` here, `config.batch` there). Of a number written
    out each line with the same number counts: it may be the batch size again. None if it cannot be
    told: the source is unreadable, or the name is handed in from elsewhere (a parameter, or nothing
    that this script assigns).
    """
    try:
        text = script.read_text(encoding="utf-8")
        tree = ast.parse(text)
        wanted = ast.parse(expression, mode="eval").body
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    if isinstance(wanted, ast.Name) and _handed_in(tree, wanted.id):
        return None
    names, passed_on = _origins(tree, wanted)
    attributes = {w.attr for w in _attributes(names, tree)}
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
        if _is_read(node)
        and id(node) not in inside
        and (ast.dump(node) in names or getattr(node, "attr", None) in attributes)
    }
    return tuple(f"{script.name}:{n}: {lines[n - 1].strip()[:80]}" for n in sorted(found))


def _is_read(node: ast.AST) -> TypeGuard[ast.expr]:
    loaded = isinstance(node, READ) and isinstance(node.ctx, ast.Load)
    return loaded or isinstance(node, ast.Constant)


def _handed_in(tree: ast.AST, name: str) -> bool:
    """True if a name is some function's parameter, or is never assigned in the script."""
    parameters = {
        argument.arg
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
    }
    assigned = {
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    return name in parameters or name not in assigned


def _attributes(names: set[str], tree: ast.AST) -> list[ast.Attribute]:
    """The attributes among the expressions of the number."""
    return [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and ast.dump(n) in names]


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
