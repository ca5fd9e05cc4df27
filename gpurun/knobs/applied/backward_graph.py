"""The graph that a backward pass walks through: its operations, and the tensors at its ends."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from torch.autograd.graph import Node


def nodes_before(tensors: Iterable[Tensor], most: int | None = None) -> Iterator[Node]:
    """The operations that made these tensors, each once, the last first; none is looked for once
    `most` are known."""
    waiting = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen = set(waiting)
    while waiting and (most is None or len(seen) < most):
        node = waiting.pop()
        yield node
        for source, _ in node.next_functions:
            if source is not None and source not in seen:
                seen.add(source)
                waiting.append(source)


def graph_leaves(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The tensors into which a backward pass from these accumulates gradients."""
    return [
        node.variable  # type: ignore[attr-defined]  # torch declares it nowhere
        for node in nodes_before(tensors)
        if type(node).__name__ == "AccumulateGrad"
    ]
