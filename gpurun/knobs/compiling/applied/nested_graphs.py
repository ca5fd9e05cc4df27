"""Captured graphs that call inner graphs: those of blocks that are compiled once.

Dynamo captures a call of such a block as an operation, `invoke_subgraph`, whose first argument is
the graph module of the block. Blocks that compute alike share one (see `nested_blocks`).
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

CALL = "invoke_subgraph"
OWN_ARGUMENTS = 2
"""A call's arguments before those of the block: its inner graph, and the name of this graph."""
WRITE_STATISTICS = ("batch_norm", "instance_norm")
"""Functions that write to running averages without a sign of it in the averages' versions."""


class CannotNest(Exception):
    """Why the blocks of a captured graph cannot be compiled once for all."""


def inner_graphs(module: GraphModule) -> list[tuple[GraphModule, list[Node]]]:
    """The inner graphs that a graph calls, each with its calls."""
    found: dict[int, tuple[GraphModule, list[Node]]] = {}
    for node in module.graph.nodes:
        body = _called(module, node)
        if body is not None:
            found.setdefault(id(body), (body, []))[1].append(node)
    return list(found.values())


def _called(module: GraphModule, node: Node) -> GraphModule | None:
    target = node.target
    if not isinstance(target, torch._ops.HigherOrderOperator) or str(target) != CALL:
        return None
    inner: Any = node.args[0]
    body = getattr(module, inner.target)
    assert isinstance(body, GraphModule)
    return body


# -- what torch would compile, but not as the script means it ----------------------------------


def check_nesting(module: GraphModule) -> None:
    """Raise `CannotNest` unless blocks share graphs, and torch compiles these as they are meant.

    Torch partitions the graph of a block by itself. So a checkpoint around the block would not
    keep its results out of memory, and a buffer that the block writes would be written twice. All
    results of a block are computed, used or not: among them are what its layers computed on the
    way, once the block keeps something for itself.
    """
    for part in module.modules():
        if isinstance(part, GraphModule) and part is not module:
            _check_operators(part)
    inner = inner_graphs(module)
    if len(inner) >= sum(len(calls) for _, calls in inner):
        raise CannotNest("no two of its blocks have the same graph")
    for body, calls in inner:
        if _wastes(body, calls):
            raise CannotNest("a block leaves a result that nobody uses")
        if _writes(body):
            raise CannotNest("a block changes a tensor that it does not own")


def _check_operators(part: GraphModule) -> None:
    for node in part.graph.nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator):
            raise CannotNest(f"there is {node.target} in a block or around it")


def _wastes(body: GraphModule, calls: Sequence[Node]) -> bool:
    """True if one of an inner graph's results is used after none of its calls."""
    results: Any = body.graph.find_nodes(op="output")[0].args[0]
    used = {user.args[1] for call in calls for user in call.users if user.users}
    return len(results) > len(used)


def _writes(body: GraphModule) -> bool:
    """True if a graph changes an input in place; it is run with tensors that hold no data."""
    examples = [node.meta["example_value"] for node in body.graph.find_nodes(op="placeholder")]
    if any(getattr(node.target, "__name__", "") in WRITE_STATISTICS for node in body.graph.nodes):
        return True
    mode = next((x.fake_mode for x in examples if isinstance(x, FakeTensor)), None)
    if mode is None:
        return True  # nobody can tell
    with torch.inference_mode(False), mode, torch.no_grad():
        given = [x.detach().clone() if isinstance(x, Tensor) else x for x in examples]
        before = [x._version for x in given if isinstance(x, Tensor)]
        body(*given)
        return before != [x._version for x in given if isinstance(x, Tensor)]


# -- the same graph without inner ones ---------------------------------------------------------

Copies = dict[tuple[Node | None, Node], Any]
"""(call, operation of its inner graph) → the copy of this operation in a flat graph. Operations of
the outer graph have None in the place of the call."""


def flattened(module: GraphModule) -> tuple[GraphModule, Copies]:
    """A copy of a graph in which the operations of inner graphs stand in place of their calls."""
    graph, copies = Graph(), Copies()
    results: dict[Node, Any] = {}

    def outer(node: Node) -> Any:
        return copies[None, node]

    for node in module.graph.nodes:
        body = _called(module, node)
        if body is not None:
            given = map_arg(tuple(node.args[OWN_ARGUMENTS:]), outer)
            results[node] = _inlined(graph, copies, node, body, iter(given))
        elif node.op == "output":
            graph.output(map_arg(node.args[0], outer))
        elif node.target is operator.getitem and node.args[0] in results:
            copies[None, node] = results[node.args[0]][node.args[1]]
        elif not _is_inner_graph(module, node):
            copies[None, node] = graph.node_copy(node, outer)
    return GraphModule(module, graph), copies


def _is_inner_graph(module: GraphModule, node: Node) -> bool:
    held = getattr(module, str(node.target), None) if node.op == "get_attr" else None
    return isinstance(held, GraphModule)


def _inlined(
    graph: Graph, copies: Copies, call: Node, body: GraphModule, given: Iterator[Any]
) -> Any:
    """Copy the operations of an inner graph for one of its calls; returns what the call returns."""

    def inside(node: Node) -> Any:
        return copies[call, node]

    inner: Any = call.args[0]
    for node in body.graph.nodes:
        if node.op == "placeholder":
            copies[call, node] = next(given)
        elif node.op == "output":
            return map_arg(node.args[0], inside)
        else:
            copy = copies[call, node] = graph.node_copy(node, inside)
            if node.op in ("get_attr", "call_module"):
                copy.target = f"{inner.target}.{node.target}"
    return None
