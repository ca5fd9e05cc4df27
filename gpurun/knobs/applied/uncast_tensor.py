"""The tensor class that passes for float32 while its numbers are still of half precision.

Its numbers are cast when they are first read, once. Views, copies and choices of its elements stay
in half precision: float32 holds every half-precision number exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx
from torch.nn.functional import cross_entropy
from torch.utils._pytree import tree_leaves, tree_map_only

from gpurun.knobs.applied.autograd_state import is_plain_training
from gpurun.knobs.applied.replaced_calls import Args, Kwargs
from gpurun.records.frames import drop_frame

Operation = Callable[..., Any]
Step = tuple[Operation, Args, Kwargs]
"""An operation that makes a view: the operation, its further arguments, those by name."""
Loss = Callable[[Tensor, Args, Kwargs], Tensor | None]
"""(tensor, further arguments, those by name of a call of `cross_entropy`) → the loss, or None."""

VIEWS = (
    "alias.default", "detach.default", "expand.default", "permute.default", "select.int",
    "slice.Tensor", "squeeze.default", "squeeze.dim", "squeeze.dims", "t.default",
    "transpose.int", "unsqueeze.default", "view.default", "_unsafe_view.default",
)  # fmt: skip
MOVES = ("clone.default", "index.Tensor", "select_backward.default", "slice_backward.default")
"""Operations that only copy elements, or put zeros beside them."""
CHOICES = ("argmax.default", "max.dim", "topk.default")
"""Operations that compare elements: their result is small, and the same in both types."""
STORED = (
    "__array__", "__deepcopy__", "__dlpack__", "__format__", "__reduce_ex__", "__repr__",
    "_typed_storage", "data_ptr", "is_shared", "numpy", "share_memory_", "storage", "tolist",
    "untyped_storage",
)  # fmt: skip
"""Methods of tensors that go past the operations of torch, most of them to the memory."""


def _operations(names: tuple[str, ...]) -> frozenset[Operation]:
    return frozenset(attrgetter(name)(torch.ops.aten) for name in names)


_IN_HALF, _MOVES, _CHOICES = map(_operations, (VIEWS + MOVES + CHOICES, MOVES, CHOICES))
_STORED = {getattr(Tensor, name) for name in STORED} | {Tensor.__cuda_array_interface__.__get__}


class Numbers:
    """The numbers of a tensor and its views: of half precision until somebody reads them."""

    def __init__(self, half: Tensor) -> None:
        self.data = half
        self.is_half = True
        self.has_gaps = as_seen(half) is not half

    def cast(self) -> None:
        """From now on they are float32."""
        if self.is_half:
            self.data = self.data.float()
            self.is_half = self.has_gaps = False

    def close_gaps(self) -> bool:
        """Lay them out as the script sees them; False if they are."""
        had_gaps = self.has_gaps
        if had_gaps:
            self.data = self.data.clone()
            self.has_gaps = False
        return had_gaps


class Uncast(Tensor):
    """A float32 tensor whose numbers are not computed yet.

    All that it has beyond a tensor is private: scripts ask `hasattr(output, "loss")`.
    """

    _numbers: Numbers
    _views: tuple[Step, ...]
    _loss: Loss | None

    @staticmethod
    def __new__(
        cls: type[Uncast],
        numbers: Numbers,
        like: Tensor,
        views: tuple[Step, ...] = (),
        loss: Loss | None = None,
    ) -> Uncast:
        """`like` has its shape and strides; `views` make it of the numbers."""
        tensor: Uncast = Tensor._make_wrapper_subclass(
            cls,
            like.shape,
            strides=like.stride(),
            dtype=torch.float32,
            device=numbers.data.device,
        )
        # compiled code of others that asks for the memory raises, it gets no null pointer
        torch._C._set_throw_on_mutable_data_ptr(tensor)
        tensor._numbers, tensor._views, tensor._loss = numbers, views, loss
        return tensor

    @property
    def _present(self) -> Tensor:
        """Its numbers as they are now, half or float32."""
        return replay(self._numbers.data, self._views)

    @property
    def _full(self) -> Tensor:
        """Its numbers in float32, cast now if they are not yet."""
        self._numbers.cast()
        return self._present

    @classmethod
    def __torch_function__(
        cls, func: Operation, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        """Cast for functions that go to the memory; offer a cross entropy to `loss` first."""
        kwargs = kwargs or {}
        if func is cross_entropy and isinstance(args[0], cls):
            loss = args[0]._own_loss(args[1:], kwargs)
            if loss is not None:
                return loss
        try:
            if func in _STORED:
                args, kwargs = tree_map_only(cls, ToCopy.apply, (args, kwargs))
                return func(*args, **kwargs)
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Operation, types: object, args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        """Run an operation in half precision where its result is the same; else cast first."""
        kwargs = kwargs or {}
        own: dict[int, Uncast] = {}

        def plain(tensor: Uncast) -> Tensor:
            full = tensor._full
            own[id(full)] = tensor
            return full

        try:
            if func in _IN_HALF and _is_half_alone(args, kwargs):
                return args[0]._in_half(func, args[1:], kwargs)
            args, kwargs = tree_map_only(cls, plain, (args, kwargs))
            result = func(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        # what is changed in place is returned as the tensor that the script has
        return tree_map_only(Tensor, lambda x: own.get(id(x), x), result)

    def _own_loss(self, further: Args, named: Kwargs) -> Tensor | None:
        ours = self._loss is not None and self.requires_grad and is_plain_training()
        return self._loss(self, further, named) if ours and self._loss is not None else None

    def _in_half(self, operation: Operation, further: Args, named: Kwargs) -> object:
        """The result of an operation on the numbers in half precision."""
        numbers = self._numbers
        try:
            try:
                found = operation(self._present, *further, **named)
            except RuntimeError:  # a view that there is only without the gaps
                if not numbers.close_gaps():
                    raise
                found = operation(self._present, *further, **named)
        except BaseException as error:
            drop_frame(error)
            raise
        if operation in _CHOICES:
            return tree_map_only(Tensor, _as_float32, found)
        if operation in _MOVES:
            return uncast_again(found, self._loss)
        if numbers.has_gaps:
            found = operation(_laid_out_like(self), *further, **named)
        return type(self)(numbers, found, (*self._views, (operation, further, named)), self._loss)


class ToCopy(torch.autograd.Function):
    """The plain tensor with the numbers of an uncast one, in the same memory."""

    @staticmethod
    def forward(ctx: FunctionCtx, tensor: Uncast) -> Tensor:
        """Cast the numbers."""
        return tensor._full.detach()

    @staticmethod
    def backward(ctx: FunctionCtx, gradient: Tensor) -> Tensor:
        """The same gradient."""
        return gradient


def uncast_again(half: Tensor, loss: Loss | None = None) -> Uncast:
    """A tensor in place of `half.float()`, without a link in the graph of autograd."""
    return Uncast(Numbers(half), as_seen(half), (), loss)


def as_seen(half: Tensor) -> Tensor:
    """A tensor with the strides that a cast gives: where there are no gaps, this one."""
    like = torch.empty_like(half, device="meta")
    return half if like.stride() == half.stride() else like


def replay(data: Tensor, views: tuple[Step, ...]) -> Tensor:
    """A view of `data` made by these operations."""
    for operation, further, named in views:
        data = operation(data, *further, **named)
    return data


def _laid_out_like(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def _is_half_alone(args: Args, kwargs: Kwargs) -> bool:
    """True if the first argument, and no other, is a tensor that is not cast yet."""
    first = args[0] if args else None
    if not isinstance(first, Uncast) or not first._numbers.is_half:
        return False
    return not any(isinstance(x, Uncast) for x in tree_leaves((args[1:], kwargs)))


def _as_float32(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor
