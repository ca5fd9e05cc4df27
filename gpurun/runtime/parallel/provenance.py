"""What of a graph comes from samples, and what from weights alone, as a penalty on them does.

What a model returned is marked in the graph. A mark lies with its node: it holds no graph, which
would hold activations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpurun.runtime.tensors import tensors

MARK = "gpurun.output"
MOST_NODES = 256
"""So far is a graph followed."""
PRODUCTS = (
    "Addmm", "Mm", "Bmm", "Baddbmm", "Addbmm", "Addmv", "Mv", "Dot", "Convolution", "SlowConv",
    "Linear", "Mkldnn", "Cudnn", "Miopen",
)  # fmt: skip
"""Nodes that take a model's input beside its weights."""
LOOKUPS = ("Embedding", "Index", "Gather", "Thnn")
"""Nodes whose input is not of the graph."""


def mark(result: Any) -> bool:
    """Know the tensors of what a root returned again; False if it has none."""
    found = list(tensors(result)) or list(tensors(getattr(result, "__dict__", None)))
    nodes = [tensor.grad_fn for tensor in found if tensor.grad_fn is not None]
    for node in nodes:
        node.metadata[MARK] = True
    return bool(nodes)


def is_output(node: Any) -> bool:
    """Whether a node of a graph made what a root returned."""
    return MARK in node.metadata


def comes_from_output(node: Any) -> bool | None:
    """Whether a node depends on what a root returned; None where that is too far to see."""
    return _below([node], is_output)


def takes_data(node: Any) -> bool | None:
    """Whether what a node reduces depends on more than weights; None where that is too far to see.

    That is told by products of weights with what is no part of the graph, and the like.
    """
    from torch.autograd.function import BackwardCFunction
    from torch.nn import Parameter

    def takes(one: Any) -> bool:
        name = one.name()
        if name.endswith("AccumulateGrad"):
            return not isinstance(one.variable, Parameter)
        if name.startswith(LOOKUPS) or isinstance(one, BackwardCFunction):
            return True
        return name.startswith(PRODUCTS) and any(x is None for x, _ in one.next_functions)

    return _below(behind(node), takes)


def behind(node: Any) -> list[Any]:
    """The nodes that a node got its inputs from."""
    return [following for following, _ in node.next_functions if following is not None]


def _below(ahead: list[Any], wanted: Callable[[Any], bool]) -> bool | None:
    """Whether any of these nodes or those behind them is wanted; None if there are too many."""
    seen = set(ahead)
    while ahead:
        node = ahead.pop()
        if wanted(node):
            return True
        if len(seen) > MOST_NODES:
            return None
        new = [following for following in behind(node) if following not in seen]
        seen.update(new)
        ahead += new
    return False
