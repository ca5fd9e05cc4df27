"""Graphs that call inner graphs, made by hand as dynamo captures them."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule, Interpreter, Node

from gpurun.knobs.attention.applied.attention_rewrite import Rewritten, rewrite
from gpurun.knobs.compiling.applied.nested_graphs import (
    CannotNest,
    check_nesting,
    flattened,
    inner_graphs,
)

Body = Callable[[Graph, Node, Node], Node]
"""(graph, x, weight) → the result of a block."""
INVOKE = torch.ops.higher_order.invoke_subgraph


class _Examples(Interpreter):
    """Gives each node what it computes, as dynamo does."""

    def run_node(self, n: Node) -> Any:
        n.meta["example_value"] = found = super().run_node(n)
        return found


def block(body: Body, *examples: Tensor) -> GraphModule:
    """The graph module of a block: a tuple of one result."""
    graph = Graph()
    x, weight = graph.placeholder("x"), graph.placeholder("weight")
    graph.output((body(graph, x, weight),))
    return with_examples(GraphModule(nn.Module(), graph), *examples)


def with_examples(module: GraphModule, *examples: Tensor) -> GraphModule:
    """The same module, whose nodes know what they compute."""
    mode = FakeTensorMode()
    _Examples(module).run(*(mode.from_tensor(example) for example in examples))
    return module


def model(blocks: Sequence[GraphModule], *examples: Tensor) -> GraphModule:
    """A graph that calls the blocks one after the other, each with a weight of its own."""
    root, graph = nn.Module(), Graph()
    names = {id(body): f"subgraph_{place}" for place, body in enumerate(dict.fromkeys(blocks))}
    for body in blocks:
        root.add_module(names[id(body)], body)
    x, *weights = (graph.placeholder(f"input_{place}") for place in range(len(examples)))
    for node, example in zip(graph.nodes, examples, strict=True):
        node.meta["example_value"] = example
    for body, weight in zip(blocks, weights, strict=True):
        name = names[id(body)]
        called = graph.call_function(INVOKE, (graph.get_attr(name), name, x, weight))
        x = graph.call_function(operator.getitem, (called, 0))
    graph.output((graph.call_function(torch.mul, (x, 2)),))
    return GraphModule(root, graph)


def layer(graph: Graph, x: Node, weight: Node) -> Node:
    return graph.call_method("relu", (graph.call_function(torch.matmul, (x, weight)),))


def tensors(blocks: int, size: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2, size, size, generator=generator) for _ in range(blocks + 1)]


def test_the_flat_copy_computes_the_same_with_no_call_in_it() -> None:
    given = tensors(3)
    shared, other = block(layer, *given[:2]), block(layer, *given[:2])
    nested = model([shared, shared, other], *given)
    flat, copies = flattened(nested)
    (result,), expected = flat(*given), given[0]
    for weight in given[1:]:
        expected = (expected @ weight).relu()
    torch.testing.assert_close(result, 2 * expected)
    assert not any(node.target is INVOKE for node in flat.graph.nodes)
    assert [len(calls) for _, calls in inner_graphs(nested)] == [2, 1]
    relu = next(node for node in shared.graph.nodes if node.target == "relu")
    (_, calls), _ = inner_graphs(nested)
    assert [copies[call, relu].target for call in calls] == ["relu", "relu"]
    assert copies[calls[0], relu] is not copies[calls[1], relu]


def adds_in_place(graph: Graph, x: Node, weight: Node) -> Node:
    return graph.call_method("add_", (x, weight))


def normalises(graph: Graph, x: Node, weight: Node) -> Node:
    mean = graph.call_method("mean", (weight, (0, 1)))
    batch_norm = nn.functional.batch_norm
    return graph.call_function(batch_norm, (graph.call_method("transpose", (x, 1, 2)), mean, mean))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (layer, None),
        (adds_in_place, "a block changes a tensor that it does not own"),
        (normalises, "a block changes a tensor that it does not own"),
    ],
)
def test_a_block_that_writes_what_it_is_given_is_not_compiled_once(
    body: Body, reason: str | None
) -> None:
    given = tensors(2)
    shared = block(body, *given[:2])
    nested = model([shared, shared], *given)
    if reason is None:
        check_nesting(nested)
    else:
        with pytest.raises(CannotNest, match=reason):
            check_nesting(nested)


def test_blocks_that_share_no_graph_are_not_compiled_once() -> None:
    given = tensors(2)
    nested = model([block(layer, *given[:2]), block(layer, *given[:2])], *given)
    with pytest.raises(CannotNest, match="no two of its blocks have the same graph"):
        check_nesting(nested)


def test_a_block_that_leaves_results_behind_is_not_compiled_once() -> None:
    given, graph = tensors(2), Graph()
    x, weight = graph.placeholder("x"), graph.placeholder("weight")
    result = layer(graph, x, weight)
    graph.output((result, result.args[0]))
    shared = with_examples(GraphModule(nn.Module(), graph), *given[:2])
    with pytest.raises(CannotNest, match="a block leaves a result that nobody uses"):
        check_nesting(model([shared, shared], *given))


def test_blocks_inside_of_blocks_are_not_compiled_once() -> None:
    given = tensors(2)
    inner = block(layer, *given[:2])

    def outer(graph: Graph, x: Node, weight: Node) -> Node:
        called = graph.call_function(INVOKE, (graph.get_attr("inner"), "inner", x, weight))
        return graph.call_function(operator.getitem, (called, 0))

    graph = Graph()
    x, weight = graph.placeholder("x"), graph.placeholder("weight")
    graph.output((outer(graph, x, weight),))
    shared = GraphModule(nn.ModuleDict({"inner": inner}), graph)
    with pytest.raises(CannotNest, match="there is invoke_subgraph in a block or around it"):
        check_nesting(model([shared, shared], *given))


def attends(graph: Graph, x: Node, mask: Node) -> Node:
    """Attention as it is written by hand; `mask` is True where a query sees a key."""
    scores = graph.call_function(torch.matmul, (x, graph.call_method("transpose", (x, -2, -1))))
    scores = graph.call_function(operator.truediv, (scores, 2.0))
    hidden = graph.call_function(torch.logical_not, (mask,))
    scores = graph.call_method("masked_fill", (scores, hidden, float("-inf")))
    return graph.call_function(torch.matmul, (graph.call_function(torch.softmax, (scores, -1)), x))


def attention(masks: Sequence[Tensor]) -> tuple[GraphModule, list[Tensor], Rewritten]:
    """A graph whose blocks attend, its inputs, and the outcome of rewriting it."""
    x = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0))
    shared = block(attends, x, masks[0])
    given = [x, *masks]
    nested = model([shared] * len(masks), *given)
    return nested, given, rewrite(nested, given, lambda tensor: tensor is not x)


def kernels(nested: GraphModule) -> int:
    ((body, _),) = inner_graphs(nested)
    kernel = nn.functional.scaled_dot_product_attention
    return sum(node.target is kernel for node in body.graph.nodes)


CAUSAL = torch.ones(5, 5, dtype=torch.bool).tril()


def test_attention_in_an_inner_graph_is_replaced_for_all_its_calls() -> None:
    nested, given, done = attention([CAUSAL, CAUSAL.clone()])
    assert (done.masks, done.unfit) == (["causal", "causal"], [])
    assert kernels(nested) == 1
    torch.testing.assert_close(nested(*given), done.original(*given))
    assert done.holds is not None
    assert done.holds(given)
    given[2].fill_(True)
    assert not done.holds(given), "the second mask is another now"


def test_attention_that_is_masked_in_another_way_in_each_block_stays_as_it_is_written() -> None:
    nested, given, done = attention([CAUSAL, torch.ones(5, 5, dtype=torch.bool)])
    assert done.masks == []
    assert list(map(str, done.unfit)) == ["it cannot be replaced alike in all blocks"]
    assert kernels(nested) == 0
    torch.testing.assert_close(nested(*given), done.original(*given))
