"""Write the products of a captured graph as `matmul`, so that there is one form of them to read.

An einsum of two tensors becomes a product of these in another order of dimensions; `baddbmm` a
product that is scaled and added to.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from gpurun.knobs.applied.attention.score_steps import KINDS, Argument, args_of, name_of


def write_plainly(graph: Graph) -> None:
    """Replace each `einsum` and `baddbmm` that can be a plain product."""
    for node in list(graph.nodes):
        name = name_of(node)
        with graph.inserting_before(node):
            if name == "einsum":
                plain = _einsum(graph, node)
            else:
                plain = _baddbmm(graph, node) if name == "baddbmm" else None
        if plain is not None:
            node.replace_all_uses_with(plain)
            graph.erase_node(node)


def _put(graph: Graph, example: object, name: str, *args: Argument) -> Node:
    """A new operation, and what dynamo notes of it: a tensor of its shape and type."""
    node = graph.call_method(name, args)
    node.meta["example_value"] = example
    return node


def _baddbmm(graph: Graph, node: Node) -> Node | None:
    names = ("input", "batch1", "batch2")
    given: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    beta, alpha = given.get("beta", 1), given.get("alpha", 1)
    if not all(isinstance(x, int | float) for x in (beta, alpha)) or alpha == 0:
        return None
    if not all(name in given for name in names) or "out" in given:
        return None
    example = node.meta.get("example_value")
    plain = _put(graph, example, "matmul", given["batch1"], given["batch2"])
    if alpha != 1:
        plain = _put(graph, example, "mul", plain, alpha)
    if beta != 0:
        added = given["input"]
        if beta != 1:
            added = _put(graph, added.meta.get("example_value"), "mul", added, beta)
        plain = _put(graph, example, "add", plain, added)
    return plain


def _einsum(graph: Graph, node: Node) -> Node | None:
    read = _read(node)
    if read is None:
        return None
    (first, second), (left, right), result = read
    both = set(left) & set(right)
    inner, batch = both - set(result), both & set(result)
    lone = [set(left) - both, set(right) - both]
    if len(inner) != 1 or any(len(x) != 1 for x in lone) or set(result) != batch.union(*lone):
        return None
    row, column, width = *(x.pop() for x in lone), inner.pop()
    if _is_softmax(second) or (result[-1] == row and not _is_softmax(first)):
        first, second, left, right, row, column = second, first, right, left, column, row
    as_weights = _is_softmax(first) or not result.endswith(row + column)
    outer = "".join(x for x in left if x in batch) if as_weights else result[:-2]
    one = _ordered(graph, first, left, outer + row + width)
    other = _ordered(graph, second, right, outer + width + column)
    example = node.meta.get("example_value")
    examples = [x.meta.get("example_value") for x in (one, other)]
    if not all(isinstance(x, torch.Tensor) for x in (example, *examples)):
        return None
    product = outer + row + column
    whole = example.permute([result.index(letter) for letter in product])
    return _ordered(graph, _put(graph, whole, "matmul", one, other), product, result)


def _read(node: Node) -> tuple[list[Node], list[str], str] | None:
    """The two operands of an einsum, their letters and the result's."""
    equation, *operands = args_of(node) or (None,)
    if not isinstance(equation, str) or node.kwargs:
        return None
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = list(operands[0])
    left, arrow, result = equation.replace(" ", "").partition("->")
    letters = left.split(",")
    if not arrow or len(operands) != 2 or len(letters) != 2 or len(result) < 3:
        return None
    if any(not word.isalpha() or len(set(word)) != len(word) for word in (*letters, result)):
        return None
    return operands, letters, result


def _is_softmax(node: Node) -> bool:
    """True of the weights of an attention."""
    while KINDS.get(name_of(node)) in ("dropout", "cast", "same"):
        node = args_of(node)[0]
    return KINDS.get(name_of(node)) == "softmax"


def _ordered(graph: Graph, node: Node, have: str, want: str) -> Node:
    """The node with its dimensions in another order."""
    example = node.meta.get("example_value")
    if have == want or not isinstance(example, torch.Tensor):
        return node
    order = [have.index(letter) for letter in want]
    return _put(graph, example.permute(order), "permute", node, tuple(order))
