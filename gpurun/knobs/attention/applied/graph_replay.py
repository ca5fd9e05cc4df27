"""Run a captured graph, or a part of it, on real tensors, leaving everything as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from gpurun.knobs.attention.applied.score_steps import KINDS, args_of, name_of

Values = dict[Node, Any]


def execute(module: GraphModule, nodes: Iterable[Node], values: Values) -> None:
    """Run operations in turn: `values` holds what they are computed from, and gets the results."""
    for node in nodes:
        if node not in values:
            values[node] = result_of(module, node, values)


def execute_exactly(module: GraphModule, nodes: Iterable[Node], values: Values) -> None:
    """The same without casts and without dropout: what an attention means, in all digits."""
    for node in nodes:
        kind = KINDS.get(name_of(node))
        if kind in ("dropout", "cast"):
            values[node] = values[args_of(node)[0]]
        elif kind == "softmax":
            values[node] = values[args_of(node)[0]].softmax(-1)
        else:
            values[node] = result_of(module, node, values)


def execute_without_dropout(module: GraphModule, nodes: Iterable[Node], values: Values) -> None:
    """The same with casts and without dropout."""
    for node in nodes:
        if KINDS.get(name_of(node)) == "dropout":
            values[node] = values[args_of(node)[0]]
        else:
            values[node] = result_of(module, node, values)


def result_of(module: GraphModule, node: Node, values: Mapping[Node, Any]) -> Any:
    """The result of one operation."""
    target: Any = node.target
    if node.op == "get_attr":
        return _attribute(module, target)
    args: Any = map_arg(node.args, lambda n: values[n])
    kwargs: Any = map_arg(node.kwargs, lambda n: values[n])
    if node.op == "call_method":
        return getattr(args[0], target)(*args[1:], **kwargs)
    if node.op == "call_module":
        return _attribute(module, target)(*args, **kwargs)
    return target(*args, **kwargs)


def replay(
    module: GraphModule,
    inputs: Sequence[Any],
    stops: Mapping[Node, Callable[[Values], None]],
    keep: set[Node],
) -> None:
    """Run a graph up to the last of `stops`, and call each with the values when it is reached.

    The values are those of the nodes in `keep` and of nodes that are used later. Inputs that the
    graph may change are copied, random generators and modes are put back, no gradient is recorded.
    """
    nodes = list(module.graph.nodes)
    nodes = nodes[: 1 + max(i for i, node in enumerate(nodes) if node in stops)]
    last_use = {used: node for node in nodes for used in node.all_input_nodes}
    ends: dict[Node, list[Node]] = {}
    for used, node in last_use.items():
        if used not in keep:
            ends.setdefault(node, []).append(used)
    given, values, entered = iter(inputs), Values(), []
    devices = {x.device.index for x in inputs if getattr(x, "is_cuda", False)}
    with torch.random.fork_rng(sorted(d for d in devices if d is not None)), torch.no_grad():
        try:
            for node in nodes:
                if node.op == "placeholder":
                    values[node] = _copied(next(given))
                else:
                    values[node] = result_of(module, node, values)
                if name_of(node) == "_enter_autocast":
                    entered.append(node)
                elif name_of(node) == "_exit_autocast":
                    entered.remove(args_of(node)[0])
                if node in stops:
                    stops[node](values)
                for used in ends.get(node, ()):
                    values.pop(used, None)
        finally:
            for node in reversed(entered):
                values[node].__exit__(None, None, None)


def real(value: object) -> Any:
    """A graph's example input as a value that operations take: the number behind a symbol."""
    hint = getattr(getattr(value, "node", None), "hint", None)
    return value if hint is None else hint


def _copied(value: object) -> object:
    """A parameter as what autocast casts without remembering it; else what may be changed."""
    if not isinstance(value, Tensor):
        return value
    return value.detach() if value.requires_grad else value.clone()


def _attribute(module: GraphModule, path: str) -> Any:
    for name in str(path).split("."):
        module = getattr(module, name)
    return module
