"""Read the operations of a captured graph: products, and what happens to scores before the softmax.

The graph is one of `torch.fx` as dynamo hands it to a backend: functions and methods of torch as
the script calls them. Shapes and data types are those of `meta["example_value"]`. Products are
first written as `matmul`, so that there is one form of them to read: an einsum of two tensors
becomes a product of these in another order of dimensions; `baddbmm` one that is scaled and added
to.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Graph, Node

Argument = torch.fx.node.Argument

NAMES = {
    "mul": ("mul", "mul_", "imul", "multiply"),
    "div": ("div", "div_", "truediv", "itruediv", "divide", "true_divide"),
    "add": ("add", "add_", "iadd"),
    "sub": ("sub", "sub_", "isub"),
    "fill": ("masked_fill", "masked_fill_"),
    "where": ("where",),
    "cast": ("to", "float", "half", "bfloat16", "double", "type", "type_as"),
    "same": ("contiguous",),
    "softmax": ("softmax",),
    "dropout": ("dropout",),
}
KINDS = {name: kind for kind, names in NAMES.items() for name in names}


@dataclass(frozen=True)
class Scale:
    """The scores are multiplied by a number, or by a tensor whose last two sizes are 1."""

    by: float | Node
    divide: bool = False


@dataclass(frozen=True)
class Add:
    """A tensor is added to the scores, or taken away."""

    what: Node
    factor: float = 1.0


@dataclass(frozen=True)
class Fill:
    """The scores where `mask` is True (or is not) become `value`, a number or a tensor of one."""

    mask: Node
    value: float | Node
    where: bool = True


Step = Scale | Add | Fill


def args_of(node: Node) -> tuple[Any, ...]:
    """The positional arguments of a node."""
    return node.args


def shape_of(node: Node) -> tuple[Any, ...] | None:
    """The sizes of a node's tensor (ints, or symbols where shapes change), None if it has none."""
    example = node.meta.get("example_value")
    shape = getattr(example, "shape", None)
    return None if shape is None else tuple(shape)


def name_of(node: Node) -> str:
    """The name of the function or method that a node calls, "" of what is not torch's own."""
    if node.op == "call_method":
        return str(node.target)
    if node.op != "call_function":
        return ""
    module = str(getattr(node.target, "__module__", None) or "torch").partition(".")[0]
    known = module in ("torch", "_operator", "operator")
    return str(getattr(node.target, "__name__", "")) if known else ""


def in_place(node: Node) -> bool:
    """True if a node changes its first argument."""
    name = name_of(node)
    if node.op == "call_method":
        return name.endswith("_") and not name.endswith("__")
    inplace_operator = getattr(node.target, "__module__", "") == "_operator" and name in _IN_PLACE
    return inplace_operator or name == "setitem" or (name.endswith("_") and bool(name.strip("_")))


_IN_PLACE = ("iadd", "isub", "imul", "itruediv", "ior", "iand", "imatmul", "ifloordiv", "ipow")


def steps_of(node: Node) -> Iterator[tuple[Node, Step | None]]:
    """The ways to read an operation as a step that keeps the scores' shape: its source, the step.

    None stands for a step that a softmax, or a kernel that accumulates in float32, does not see.
    """
    kind, args = KINDS.get(name_of(node)), args_of(node)
    plain = not set(node.kwargs) - {"dtype", "input", "other", "mask", "value", "dim"}
    if kind is None or not args or not plain or (len(args) < 2 and kind not in ("cast", "same")):
        return
    first, other = (*args, None)[:2]
    if kind in ("same", "cast"):
        if floating(node) and _device(node) == _device(first):
            yield first, None
    elif kind in ("mul", "div"):
        if _one_a_row(other):
            yield first, Scale(other, kind == "div")
        if kind == "mul" and _one_a_row(first):
            yield other, Scale(first)
    elif kind in ("add", "sub"):
        if isinstance(other, int | float):
            yield first, None
        elif _keeps_shape(node, first):
            yield first, Add(other, 1.0 if kind == "add" else -1.0)
        if kind == "add" and isinstance(other, Node) and _keeps_shape(node, other):
            yield other, Add(first)
    elif kind == "fill" and len(args) == 3 and _keeps_shape(node, first):
        yield first, Fill(args[1], args[2])
    elif kind == "where" and len(args) == 3:
        yield from _chosen(node, args)


def _chosen(node: Node, args: tuple[Any, ...]) -> Iterator[tuple[Node, Step]]:
    """`torch.where(mask, scores, value)` and the other way round; as a method the mask is second"""
    mask, yes, no = args if node.op == "call_function" else (args[1], args[0], args[2])
    if _single(no) and isinstance(yes, Node) and _keeps_shape(node, yes):
        yield yes, Fill(mask, no, where=False)
    if _single(yes) and isinstance(no, Node) and _keeps_shape(node, no):
        yield no, Fill(mask, yes)


def _single(value: object) -> bool:
    """A number, or a tensor of one."""
    if isinstance(value, Node):
        shape = shape_of(value)
        return shape is not None and math.prod(s if isinstance(s, int) else 2 for s in shape) == 1
    return isinstance(value, int | float)


def _one_a_row(value: object) -> bool:
    """A number, or a tensor that has one value for all scores of a head."""
    if isinstance(value, Node):
        shape = shape_of(value)
        return shape is not None and all(isinstance(s, int) and s == 1 for s in shape[-2:])
    return isinstance(value, int | float) and not isinstance(value, bool)


def _keeps_shape(node: Node, source: Node) -> bool:
    return str(shape_of(node)) == str(shape_of(source))


def dtype_of(node: Node) -> torch.dtype | None:
    """The data type of a node's tensor, None if it has none."""
    return getattr(node.meta.get("example_value"), "dtype", None)


def _device(node: Node) -> torch.device | None:
    return getattr(node.meta.get("example_value"), "device", None)


def floating(node: Node) -> bool:
    """True if a node is a tensor of floating numbers."""
    return bool(getattr(dtype_of(node), "is_floating_point", False))


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
    example = _example(node)
    plain = _put(graph, example, "matmul", given["batch1"], given["batch2"])
    if alpha != 1:
        plain = _put(graph, example, "mul", plain, alpha)
    if beta != 0:
        added = given["input"]
        if beta != 1:
            added = _put(graph, _example(added), "mul", added, beta)
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
    row, column, width = lone[0].pop(), lone[1].pop(), inner.pop()
    if _is_softmax(second) or (result[-1] == row and not _is_softmax(first)):
        first, second, left, right, row, column = second, first, right, left, column, row
    as_weights = _is_softmax(first) or not result.endswith(row + column)
    outer = "".join(x for x in left if x in batch) if as_weights else result[:-2]
    one = _ordered(graph, first, left, outer + row + width)
    other = _ordered(graph, second, right, outer + width + column)
    product = outer + row + column
    whole = _example(node).permute([result.index(letter) for letter in product])
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
    if any(shape_of(each) is None for each in (node, *operands)):
        return None
    return operands, letters, result


def _is_softmax(node: Node) -> bool:
    """True of the weights of an attention."""
    while KINDS.get(name_of(node)) in ("dropout", "cast", "same"):
        node = args_of(node)[0]
    return KINDS.get(name_of(node)) == "softmax"


def _ordered(graph: Graph, node: Node, have: str, want: str) -> Node:
    """The node with its dimensions in another order."""
    if have == want:
        return node
    order = [have.index(letter) for letter in want]
    return _put(graph, _example(node).permute(order), "permute", node, tuple(order))


def _example(node: Node) -> Any:
    """A tensor of the node's shape and type, as dynamo has noted it."""
    return node.meta.get("example_value")
