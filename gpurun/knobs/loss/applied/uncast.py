"""Tensors that pass for float32 while their numbers are still of half precision.

A cast of large logits writes twice what it reads, and most training scripts only ever take the loss
of them. What this module hands out has the shape, strides, type and graph of the cast, and is cast
when its numbers are first read, once. Views, copies and choices of its elements stay in half
precision, and so do gradients on their way back: float32 holds every half-precision number exactly.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

from gpurun.knobs.applied.tensor_trees import map_tensors
from gpurun.knobs.attention.applied.captured_call import is_checkpointed
from gpurun.records.frames import drop_frame

Step = tuple[Any, tuple[Any, ...], dict[str, Any]]
"""An operation that makes a view: the operation, its further arguments, those by name."""

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


class Numbers:
    """The numbers of a tensor and its views: of half precision until somebody reads them."""

    def __init__(self, half: Any) -> None:
        self.data = half
        self.is_half = True
        self.has_gaps = _as_seen(half) is not half

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


Loss = Callable[[Any, tuple[Any, ...], dict[str, Any]], Any | None]
"""(tensor, further arguments, those by name of a call of `cross_entropy`) → the loss, or None."""


@dataclass(frozen=True)
class Computed:
    """Something computed of numbers in half precision.

    `gradient(half, slope, *others)`: its gradient for the numbers, from the one for itself, without
    a graph. `plainly(tensor, *others)`: the same value by operations of torch, for those who
    differentiate twice.
    """

    value: Any
    gradient: Callable[..., Any]
    plainly: Callable[..., Any]


def uncast(half: Any, loss: Loss | None = None) -> Any:
    """A tensor in place of `half.float()`, linked to `half` in the graph of autograd.

    Its strides are those that a cast gives, also where there are gaps between the rows of `half`.

    In plain training `loss` is called in place of `torch.nn.functional.cross_entropy`; it returns
    None where the call is to be made as it is.
    """
    return _types().Upcast.apply(half, loss)


def _as_seen(half: Any) -> Any:
    """A tensor with the strides that a cast gives: where there are no gaps, this one."""
    import torch

    like = torch.empty_like(half, device="meta")
    return half if like.stride() == half.stride() else like


def _laid_out_like(tensor: Any) -> Any:
    import torch

    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")


def half_of(tensor: Any) -> Any | None:
    """The numbers in half precision, outside the graph of autograd; None once they are cast."""
    numbers = tensor._numbers
    return _replay(numbers.data, tensor._views).detach() if numbers.is_half else None


def of_half(tensor: Any, computed: Computed, others: Sequence[Any]) -> Any:
    """The value that was computed from `half_of(tensor)` and `others`, as part of the graph."""
    types = _types()
    return types.OfHalf.apply(types.Fork.apply(tensor), computed, *others)


def in_float32(value: Any) -> Any:
    """What `value` holds with plain tensors in the place of those of this module."""
    types = _types()

    def plain(tensor: Any) -> Any:
        return types.ToCopy.apply(tensor) if isinstance(tensor, types.Uncast) else tensor

    return map_tensors(value, plain)


def is_plain_training() -> bool:
    """Whether gradients are recorded, and nobody looks at each operation (traces, transforms).

    Nor at what autograd saves: what a checkpoint computes again has to save the same.
    """
    import torch

    return (
        torch.is_grad_enabled()
        and torch._C._get_tracing_state() is None
        and not torch.compiler.is_compiling()
        and torch._C._functorch.peek_interpreter_stack() is None
        and torch._C._len_torch_dispatch_stack() == 0
        and torch.autograd.forward_ad._current_level < 0
        and not is_checkpointed()
    )


@functools.cache
def _types() -> Any:
    """The classes, made when torch is there."""
    import torch
    from torch.utils._pytree import tree_leaves, tree_map_only

    in_half, moves, choices = (
        frozenset(attrgetter(name)(torch.ops.aten) for name in names)
        for names in (VIEWS + MOVES + CHOICES, MOVES, CHOICES)
    )
    stored = {getattr(torch.Tensor, name) for name in STORED}
    stored.add(torch.Tensor.__cuda_array_interface__.__get__)
    cross_entropy = torch.nn.functional.cross_entropy

    class Uncast(torch.Tensor):
        """A float32 tensor whose numbers are not computed yet."""

        _numbers: Numbers
        _views: tuple[Step, ...]
        _loss: Loss | None

        @staticmethod
        def __new__(
            cls: Any, numbers: Numbers, like: Any, views: tuple[Step, ...] = (), loss: Any = None
        ) -> Any:
            tensor = torch.Tensor._make_wrapper_subclass(
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

        @classmethod
        def __torch_function__(
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            if func is cross_entropy and isinstance(args[0], cls):
                loss = _loss(args[0], args[1:], kwargs)
                if loss is not None:
                    return loss
            try:
                if func in stored:
                    args, kwargs = tree_map_only(cls, ToCopy.apply, (args, kwargs))
                    return func(*args, **kwargs)
                with torch._C.DisableTorchFunctionSubclass():
                    return func(*args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise

        @classmethod
        def __torch_dispatch__(  # type: ignore[override]
            cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            first: Any = args[0] if args else None
            own = {}

            def plain(tensor: Any) -> Any:
                tensor._numbers.cast()
                full = _replay(tensor._numbers.data, tensor._views)
                own[id(full)] = tensor
                return full

            try:
                if func in in_half and _is_half_alone(first, args[1:], kwargs):
                    numbers, views, loss = first._numbers, first._views, first._loss
                    try:
                        found = func(_replay(numbers.data, views), *args[1:], **kwargs)
                    except RuntimeError:  # a view that there is only without the gaps
                        if not numbers.close_gaps():
                            raise
                        found = func(_replay(numbers.data, views), *args[1:], **kwargs)
                    if func in choices:
                        return tree_map_only(torch.Tensor, _as_float32, found)
                    if func in moves:
                        return uncast_again(found, loss)
                    if numbers.has_gaps:
                        found = func(_laid_out_like(first), *args[1:], **kwargs)
                    return cls(numbers, found, (*views, (func, args[1:], kwargs)), loss)
                args, kwargs = tree_map_only(cls, plain, (args, kwargs))
                result = func(*args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
            # what is changed in place is returned as the tensor that the script has
            return tree_map_only(torch.Tensor, lambda x: own.get(id(x), x), result)

    def _loss(logits: Any, further: tuple[Any, ...], named: dict[str, Any]) -> Any | None:
        ours = logits._loss is not None and logits.requires_grad and is_plain_training()
        return logits._loss(logits, further, named) if ours else None

    def _is_half_alone(first: Any, further: tuple[Any, ...], named: dict[str, Any]) -> bool:
        if not isinstance(first, Uncast) or not first._numbers.is_half:
            return False
        return not any(isinstance(x, Uncast) for x in tree_leaves((further, named)))

    def uncast_again(half: Any, loss: Loss | None = None) -> Any:
        return Uncast(Numbers(half), _as_seen(half), (), loss)

    def _as_float32(tensor: Any) -> Any:
        return tensor.float() if tensor.is_floating_point() else tensor

    class Upcast(torch.autograd.Function):
        """The cast, as autograd sees it."""

        @staticmethod
        def forward(ctx: Any, half: Any, loss: Loss | None) -> Any:
            ctx.set_materialize_grads(False)
            ctx.dtype = half.dtype
            return uncast_again(half.detach(), loss)

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            if gradient is None:
                return None, None
            if isinstance(gradient, Uncast) and not torch.is_grad_enabled():
                if gradient._numbers.is_half:
                    return _replay(gradient._numbers.data, gradient._views), None
            return gradient.to(ctx.dtype), None

    class Fork(torch.autograd.Function):
        """The same tensor for us alone: what the script changes in place does not reach it."""

        @staticmethod
        def forward(ctx: Any, tensor: Any) -> Any:
            return uncast_again(_replay(tensor._numbers.data, tensor._views).detach())

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient

    class OfHalf(torch.autograd.Function):
        """What was computed of the numbers without the cast."""

        @staticmethod
        def forward(ctx: Any, fork: Any, computed: Computed, *others: Any) -> Any:
            ctx.dtype = fork._numbers.data.dtype
            ctx.gradient, ctx.plainly = computed.gradient, computed.plainly
            ctx.save_for_backward(fork, *others)
            return computed.value

        @staticmethod
        def backward(ctx: Any, slope: Any) -> Any:
            fork, *others = ctx.saved_tensors
            if torch.is_grad_enabled():
                full: Any = ToCopy.apply(fork)  # type: ignore[no-untyped-call]
                value = ctx.plainly(full, *others)
                (found,) = torch.autograd.grad(value, full, slope, create_graph=True)
            else:
                half = fork._numbers.data.to(ctx.dtype)
                found = uncast_again(ctx.gradient(half, slope, *others))
            return found, *(None for _ in ctx.needs_input_grad[1:])

    class ToCopy(torch.autograd.Function):
        """The plain tensor with the numbers of an uncast one, in the same memory."""

        @staticmethod
        def forward(ctx: Any, tensor: Any) -> Any:
            tensor._numbers.cast()
            return _replay(tensor._numbers.data, tensor._views).detach()

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            return gradient

    return SimpleNamespace(Uncast=Uncast, Upcast=Upcast, Fork=Fork, OfHalf=OfHalf, ToCopy=ToCopy)


def _replay(data: Any, views: tuple[Step, ...]) -> Any:
    """A view of `data` made by these operations."""
    for operation, further, named in views:
        data = operation(data, *further, **named)
    return data
