"""What a model returned, marked in the graph of what is computed of it.

A mark lies with its node: it holds no graph, which would hold activations.
"""

from __future__ import annotations

from typing import Any

from gpurun.runtime.tensors import tensors

MARK = "gpurun.output"


def mark(result: Any) -> None:
    """Know the tensors of what a root returned again."""
    for tensor in tensors(result):
        if tensor.grad_fn is not None:
            tensor.grad_fn.metadata[MARK] = True


def is_output(node: Any) -> bool:
    """Whether a node of a graph made what a root returned."""
    return MARK in node.metadata
