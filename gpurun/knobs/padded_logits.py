"""Compute large logits in rows of whole cache lines, where a model ends in a linear layer.

Rows of 50,257 halves begin at any byte: kernels that write them, and products with them, take up to
twice as long. The graph that is captured of the model gets some columns more, by weights of zero.
The script sees the columns that it knows: a tensor whose rows have gaps between them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from gpurun.knobs.graph_rewrites import Finish, Rewrite
from gpurun.records.frames import drop_frame

LINE = 64
"""Elements of half precision in 128 bytes."""
MOST_COLUMNS = 0.02
"""So much of a row may be added at most."""


class _Rows:
    """Memory that holds padded rows, by storage; kept alive by nothing here."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, int]] = {}

    def add(self, tensor: Any, width: int) -> None:
        """The whole rows of a tensor, of which `width` columns are meant."""
        from torch.multiprocessing.reductions import StorageWeakRef

        self._known = {at: found for at, found in self._known.items() if not found[0].expired()}
        reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self._known[reference.cdata] = reference, width

    def have(self, tensor: Any) -> bool:
        """Whether a tensor is the columns that are meant, of some or all of these rows."""
        if not self._known or tensor.dim() < 2 or tensor.stride(-1) != 1:
            return False
        reference, width = self._known.get(tensor.untyped_storage()._cdata, (None, 0))
        return reference is not None and not reference.expired() and width == tensor.shape[-1]


PADDED = _Rows()
"""What models returned."""
ENDS_IN_ZEROS = _Rows()
"""Gradients, of which the columns that nobody knows are zero."""


def length_of(rows: Any) -> int:
    """Elements from one padded row to the next, of which those beyond `shape[-1]` are no logits."""
    return int(rows.stride(-2))


def copy_of(tensor: Any) -> Any:
    """A copy, as part of the graph of autograd; of padded rows with their gaps."""
    return _functions().Copied.apply(tensor) if PADDED.have(tensor) else tensor.clone()


def columns(whole: Any, width: int) -> Any:
    """The first columns of rows, in the same memory but no view of them for autograd."""
    shape = (*whole.shape[:-1], width)
    storage, offset = whole.untyped_storage(), whole.storage_offset()
    return whole.new_empty(0).set_(storage, offset, shape, whole.stride())


def padding(is_large: Callable[[int], bool]) -> Rewrite:
    """A rewrite that pads the logits of half precision that a graph returns in training.

    `is_large(elements)` tells whether so many are worth it.
    """

    def rewrite(module: Any, inputs: Sequence[Any], finish: Finish) -> Callable[..., Any]:
        padded = _pad(module, is_large)
        run = finish(module, inputs)
        if not padded:
            return run

        def call(*args: Any) -> Any:
            try:
                results = list(run(*args))
                for place, width in padded.items():
                    results[place] = _functions().Columns.apply(results[place], width)
                return results
            except BaseException as error:
                drop_frame(error)
                raise

        return call

    return rewrite


def _pad(module: Any, is_large: Callable[[int], bool]) -> dict[int, int]:
    """Pad what fits in a graph; the places of its results that have more columns, and how many
    are meant.
    """
    import torch

    graph = module.graph
    (output,) = [node for node in graph.nodes if node.op == "output"]
    results = list(output.args[0]) if isinstance(output.args[0], (list, tuple)) else []
    padded = {}
    for place, node in enumerate(results if torch.is_grad_enabled() else ()):
        width = _width(node, is_large)
        if width is None or results.count(node) > 1 or list(node.users) != [output]:
            continue
        extra = -width % LINE
        if not 0 < extra <= MOST_COLUMNS * width:
            continue
        inputs, weight, *bias = node.args
        with graph.inserting_before(node):
            pad = functools.partial(graph.call_function, torch.nn.functional.pad)
            given = [pad((weight, (0, 0, 0, extra)))]
            given += [None if b is None else pad((b, (0, extra))) for b in bias]
        node.args = (inputs, *given)
        padded[place] = width
    if padded:
        module.recompile()
    return padded


def _width(node: Any, is_large: Callable[[int], bool]) -> int | None:
    """The columns of a linear layer's large result in half precision; None for anything else."""
    import torch

    if getattr(node, "target", None) is not torch.nn.functional.linear or node.kwargs:
        return None
    value = node.meta.get("example_value")
    if value is None or value.dtype not in (torch.bfloat16, torch.float16) or value.dim() < 2:
        return None
    sizes = [getattr(getattr(size, "node", None), "hint", size) for size in value.shape]
    if None in sizes or not is_large(math.prod(sizes)):
        return None
    return value.shape[-1] if isinstance(value.shape[-1], int) else None


def _whole(rows: Any) -> Any:
    return rows.as_strided((*rows.shape[:-1], length_of(rows)), rows.stride())


@functools.cache
def _functions() -> Any:
    """What autograd knows of it, made when torch is there."""
    import torch

    class Columns(torch.autograd.Function):
        """The columns that are meant, of what the graph returned."""

        @staticmethod
        def forward(ctx: Any, whole: Any, width: int) -> Any:
            ctx.set_materialize_grads(False)
            ctx.extra = whole.shape[-1] - width
            part = columns(whole, width)
            PADDED.add(part, width)
            return part

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            if gradient is None:
                return None, None
            if ENDS_IN_ZEROS.have(gradient) and not torch.is_grad_enabled():
                return _whole(gradient), None
            return torch.nn.functional.pad(gradient, (0, ctx.extra)), None

    class Copied(torch.autograd.Function):
        """A copy of padded rows."""

        @staticmethod
        def forward(ctx: Any, rows: Any) -> Any:
            ctx.set_materialize_grads(False)
            copy = columns(_whole(rows).clone(), rows.shape[-1])
            PADDED.add(copy, rows.shape[-1])
            return copy

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient

    return SimpleNamespace(Columns=Columns, Copied=Copied)
