"""Compute large logits in rows of whole cache lines, where a captured graph ends in a linear layer.

Rows of 50,257 halves begin at any byte: kernels that write them, and products with them, take up to
twice as long. The graph gets some columns more, by weights of zero. It returns the model's logits,
as a tensor with gaps between its rows. The knob hides the gaps from the script.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.fx import GraphModule, Node
from torch.multiprocessing.reductions import StorageWeakRef

from gpurun.knobs.applied.compiling.compiled_calls import Finish, Rewrite
from gpurun.records.frames import drop_frame

V = TypeVar("V")
LINE = 64
"""Elements of half precision in 128 bytes."""
MOST_COLUMNS = 0.02
"""So much of a row may be added at most."""


def _expired(reference: StorageWeakRef) -> bool:
    return bool(reference.expired())  # type: ignore[no-untyped-call]


class _ByStorage(Generic[V]):
    """Facts about some memory; nothing here keeps the memory alive."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[StorageWeakRef, V]] = {}

    def keep(self, tensor: Tensor, value: V) -> None:
        """Keep a fact about the memory of a tensor."""
        known = list(self._known.items())
        self._known = {at: found for at, found in known if not _expired(found[0])}
        reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
        self._known[reference.cdata] = reference, value

    def of(self, tensor: Tensor) -> V | None:
        """The facts about the memory of a tensor, None if there are none."""
        if not self._known or not _is_strided(tensor):
            return None
        found = self._known.get(tensor.untyped_storage()._cdata)
        return None if found is None or _expired(found[0]) else found[1]


class _Rows(_ByStorage[tuple[int, int]]):
    """Memory that holds padded rows."""

    def add(self, tensor: Tensor, width: int, length: int) -> None:
        """Note the memory of a tensor: rows of `length` elements, the first `width` of which are
        logits."""
        self.keep(tensor, (width, length))

    def length(self, tensor: Tensor) -> int | None:
        """The padded row length of a tensor that holds the unpadded columns of such rows, else
        None.

        The tensor may hold some or all of the rows, each once, in the order of its leading
        dimensions.
        """
        found = self.of(tensor)
        if found is None:
            return None
        width, length = found
        if tensor.shape[-1] != width or tensor.stride(-1) != 1 or tensor.storage_offset() % length:
            return None
        steps = [step for step, size in _rows_of(tensor) if size > 1]
        return length if all(step and step % length == 0 for step in steps) else None


PADDED = _Rows()
"""Outputs of models."""
ENDS_IN_ZEROS = _Rows()
"""Gradients whose padding columns are zero."""
UNCONFIRMED: _ByStorage[Callable[[], None]] = _ByStorage()
"""Results of graphs that may or may not reach the script as they are, each with a function to call
once they do."""


def _is_strided(tensor: Tensor) -> bool:
    plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided
    return plain and tensor.dim() >= 2 and tensor.numel() > 0


def _rows_of(tensor: Tensor) -> list[tuple[int, int]]:
    """Stride and size of each dimension but the last."""
    return list(zip(tensor.stride()[:-1], tensor.shape[:-1], strict=True))


def confirm(tensor: Tensor) -> None:
    """The knob has this result of the model in hand, and will hide gaps between its rows."""
    told = UNCONFIRMED.of(tensor)
    if told is not None:
        told()


def copy_of(tensor: Tensor) -> Tensor:
    """A copy, as part of the graph of autograd; of padded rows with their gaps."""
    length = PADDED.length(tensor)
    if length is not None:
        copied: Tensor = _Copied.apply(tensor, length)  # type: ignore[no-untyped-call]
        return copied
    copy = tensor.clone()
    told = UNCONFIRMED.of(tensor)
    if told is not None:
        UNCONFIRMED.keep(copy, told)
    return copy


def columns(whole: Tensor, width: int) -> Tensor:
    """The first columns of rows, in the same memory but no view of them for autograd."""
    shape = (*whole.shape[:-1], width)
    storage, offset = whole.untyped_storage(), whole.storage_offset()
    return whole.new_empty(0).set_(storage, offset, shape, whole.stride())


def padding(is_large: Callable[[int], bool]) -> Rewrite:
    """A rewrite that pads the logits of half precision that a graph returns in training.

    `is_large(elements)` tells whether so many are worth it. Gaps are only for code that hides them.
    Until the result of a graph is known to be the model's, it is copied to rows without gaps.
    """

    def rewrite(module: GraphModule, inputs: Sequence[Any], finish: Finish) -> Callable[..., Any]:
        padded = _pad(module, is_large)
        run = finish(module, inputs)
        if not padded:
            return run
        confirmed: set[int] = set()

        def call(*args: Any) -> list[Tensor]:
            try:
                results = list(run(*args))
                for place, width in padded.items():
                    if place in confirmed:
                        results[place] = _Columns.apply(  # type: ignore[no-untyped-call]
                            results[place], width
                        )
                    else:
                        results[place] = results[place][..., :width].contiguous()
                        UNCONFIRMED.keep(results[place], partial(confirmed.add, place))
                return results
            except BaseException as error:
                drop_frame(error)
                raise

        return call

    return rewrite


def _pad(module: GraphModule, is_large: Callable[[int], bool]) -> dict[int, int]:
    """Pad what fits in a graph; the places of its results that have more columns, and how many
    are meant.
    """
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
        arguments: tuple[Any, ...] = node.args
        inputs, weight, *bias = arguments
        with graph.inserting_before(node):
            pad = partial(graph.call_function, torch.nn.functional.pad)
            given: list[Node | None] = [pad((weight, (0, 0, 0, extra)))]
            given += [None if b is None else pad((b, (0, extra))) for b in bias]
        node.args = (inputs, *given)
        padded[place] = width
    if padded:
        module.recompile()
    return padded


def _width(node: Node, is_large: Callable[[int], bool]) -> int | None:
    """The columns of a linear layer's large result in half precision; None for anything else."""
    if getattr(node, "target", None) is not torch.nn.functional.linear or node.kwargs:
        return None
    value = node.meta.get("example_value")
    if value is None or value.dtype not in (torch.bfloat16, torch.float16) or value.dim() < 2:
        return None
    sizes = [getattr(getattr(size, "node", None), "hint", size) for size in value.shape]
    if None in sizes or not is_large(math.prod(sizes)):
        return None
    return value.shape[-1] if isinstance(value.shape[-1], int) else None


def _whole(rows: Tensor, length: int) -> Tensor:
    """The rows that a tensor is the columns of."""
    steps = [step if size > 1 else length for step, size in _rows_of(rows)]
    return rows.as_strided((*rows.shape[:-1], length), (*steps, 1))


class _Padding(FunctionCtx):
    """The attribute that `_Columns` keeps from its forward."""

    extra: int


class _Columns(torch.autograd.Function):
    """The columns that are meant, of what the graph returned."""

    @staticmethod
    def forward(ctx: _Padding, whole: Tensor, width: int) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.extra = whole.shape[-1] - width
        part = columns(whole, width)
        PADDED.add(part, width, whole.shape[-1])
        return part

    @staticmethod
    def backward(ctx: _Padding, gradient: Tensor | None) -> tuple[Tensor | None, None]:
        if gradient is None:
            return None, None
        length = None if torch.is_grad_enabled() else ENDS_IN_ZEROS.length(gradient)
        if length is not None and length == gradient.shape[-1] + ctx.extra:
            return _whole(gradient, length), None
        return torch.nn.functional.pad(gradient, (0, ctx.extra)), None


class _Copied(torch.autograd.Function):
    """A copy of padded rows."""

    @staticmethod
    def forward(ctx: FunctionCtx, rows: Tensor, length: int) -> Tensor:
        ctx.set_materialize_grads(False)
        copy = columns(_whole(rows, length).clone(), rows.shape[-1])
        PADDED.add(copy, rows.shape[-1], length)
        return copy

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor | None) -> tuple[Tensor | None, None]:
        return gradient, None
