"""Run a captured graph, or a part of it, on real tensors, leaving everything as it was."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from gpurun.knobs.applied.attention.score_steps import KINDS, args_of, name_of

Values = dict[Node, Any]

WITHOUT_DROPOUT = ("dropout",)
EXACTLY = ("dropout", "cast")
"""What is left out to compute what an attention means, in all digits."""


def compute(
    module: GraphModule, nodes: Iterable[Node], values: Values, without: Collection[str] = ()
) -> None:
    """Run operations in turn: `values` holds what they are computed from, and gets the results.

    Operations of a kind in `without` hand on what they are given.
    """
    runner = Interpreter(module, garbage_collect_values=False)
    runner.env = values
    for node in nodes:
        kind = KINDS.get(name_of(node))
        if kind in without:
            values[node] = values[args_of(node)[0]]
        elif kind == "softmax" and "cast" in without:
            values[node] = values[args_of(node)[0]].softmax(-1)
        else:
            values[node] = runner.run_node(node)


def replay(
    module: GraphModule,
    inputs: Sequence[Any],
    stops: Mapping[Node, Callable[[Values], None]],
    keep: set[Node],
) -> None:
    """Run a graph up to the last of `stops`, and call each with the values when it is reached.

    The values are those of the nodes in `keep` so far. Inputs that the graph may change are copied,
    random generators and modes are put back, no gradient is recorded.
    """
    devices = {x.device.index for x in inputs if getattr(x, "is_cuda", False)}
    running = _Replay(module, stops, keep)
    with torch.random.fork_rng(sorted(d for d in devices if d is not None)), torch.no_grad():
        try:
            running.run(*map(_copied, inputs))
        except _ReachedAll:
            pass
        finally:
            for mode in reversed(running.entered):
                mode.__exit__(None, None, None)


class _ReachedAll(Exception):
    """There is no further stop: the rest of the graph is of no interest."""


class _Replay(Interpreter):
    def __init__(
        self, module: GraphModule, stops: Mapping[Node, Callable[[Values], None]], keep: set[Node]
    ) -> None:
        super().__init__(module)
        self.extra_traceback = False
        self.entered: list[Any] = []
        self._stops, self._keep, self._values = dict(stops), keep, Values()

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        if name_of(n) == "_enter_autocast":
            self.entered.append(value)
        elif name_of(n) == "_exit_autocast":
            self.entered.pop()
        if n in self._keep:
            self._values[n] = value
        if n in self._stops:
            self._stops.pop(n)(self._values)
            if not self._stops:
                raise _ReachedAll
        return value


def real(value: object) -> Any:
    """A graph's example input as a value that operations take: the number behind a symbol."""
    hint = getattr(getattr(value, "node", None), "hint", None)
    return value if hint is None else hint


def _copied(value: object) -> object:
    """A parameter as what autocast casts without remembering it; else what may be changed."""
    if not isinstance(value, Tensor):
        return value
    return value.detach() if value.requires_grad else value.clone()
