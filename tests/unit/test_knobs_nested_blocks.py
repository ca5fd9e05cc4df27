"""The compiled call of a root whose blocks are calls of inner graphs, with graphs that run as they
are captured: torch compiles no kernel here."""

from __future__ import annotations

import copy
import inspect
import pickle
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.utils.flop_counter import FlopCounterMode

from gpurun.knobs.compiling.applied.nested_blocks import NestedCall, nested_blocks
from gpurun.knobs.compiling.applied.nested_graphs import check_nesting, inner_graphs


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.kept = nn.Linear(4, 4), nn.Identity()

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        if x.shape[-1] != 4:
            raise ValueError("four columns are wanted")
        return x + scale * torch.tanh(self.layer(x))


class Telling(Block):
    """Reads a value in the middle, if told so."""

    told: list[float] | None = None

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        if self.told is not None:
            self.told.append(x.sum().item())
        return super().forward(x, scale)


class Evaluating(Block):
    """Reads a value in evaluation."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return super().forward(x, scale if self.training else x.mean().item())


class Root:
    """A root of four blocks, its compiled call, the graphs of it, and why it gave up."""

    def __init__(self, block: Callable[[], nn.Module] = Block) -> None:
        torch.manual_seed(0)
        self.module = nn.Sequential(*(block() for _ in range(4)))
        self.graphs: list[GraphModule] = []
        self.reasons: list[str] = []
        groups, reason = nested_blocks(self.module)
        assert reason is None
        self.call = NestedCall(groups, self._compiled, self.reasons.append)

    def _compiled(self, nested: bool) -> Callable[..., Any]:
        def backend(graph: GraphModule, inputs: object) -> Callable[..., Any]:
            if nested:
                check_nesting(graph)
            self.graphs.append(graph)
            return graph.forward

        def run(*args: Tensor) -> Any:
            return self.module(*args)

        return torch.compile(run, backend=backend, fullgraph=nested)

    def calls(self) -> list[list[int]]:
        """For each graph the number of calls of each inner graph."""
        return [[len(calls) for _, calls in inner_graphs(graph)] for graph in self.graphs]


@pytest.fixture(autouse=True)
def _new_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


X = torch.ones(3, 4)


def test_blocks_are_calls_of_one_graph_in_training_and_in_evaluation() -> None:
    root = Root()
    with torch.no_grad():
        expected = root.module(X)
        torch.testing.assert_close(root.call(X), expected)
    x = X.clone().requires_grad_()
    root.call(x)
    assert root.calls() == [[4], [4]]
    assert root.reasons == []


def test_everybody_else_finds_the_forward_as_it_is() -> None:
    root = Root()
    root.call(X.clone().requires_grad_())
    block = root.module[0]
    assert (
        str(inspect.signature(block.forward)) == "(x: 'Tensor', scale: 'float' = 1.0) -> 'Tensor'"
    )
    assert inspect.getsource(Block.forward).lstrip().startswith("def forward(self, x: Tensor")
    assert "forward" not in vars(block)
    copied, loaded = copy.deepcopy(root.module), pickle.loads(pickle.dumps(root.module))
    exported = torch.export.export(root.module, (X,), strict=True)
    assert "invoke_subgraph" not in str(exported.graph)
    scripted = torch.jit.trace(root.module, X)
    results = [m(X) for m in (root.module, copied, loaded, exported.module(), scripted)]
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])


def test_what_cannot_be_one_graph_runs_once_without_inner_graphs() -> None:
    Telling.told = []
    try:
        root = Root(Telling)
        root.call(X)
        root.call(X)
        assert len(Telling.told) == 8
        assert len(root.reasons) == 1
        assert all(calls == [] for calls in root.calls())
    finally:
        Telling.told = None


def test_what_fails_in_evaluation_alone_is_given_up_there() -> None:
    root = Root(Evaluating)
    x = X.clone().requires_grad_()
    root.call(x)
    root.module.eval()
    with torch.no_grad():
        torch.testing.assert_close(root.call(X), root.module(X))
    root.module.train()
    root.call(x)
    (reason,) = root.reasons
    assert reason.endswith("(without gradients)")
    assert root.calls()[0] == [4]


def test_a_mode_that_sees_each_operation_sees_those_of_the_model() -> None:
    root = Root()
    with FlopCounterMode(display=False) as counter:
        root.call(X)
    assert counter.get_total_flops() == 4 * 2 * 3 * 4 * 4
    assert root.reasons == []


def test_an_error_of_a_block_is_the_scripts_own() -> None:
    root = Root()
    with pytest.raises(ValueError, match="four columns are wanted") as caught:
        root.call(torch.ones(3, 5))
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert not any("/gpurun/knobs/" in frame.filename for frame in frames)
