"""Exchanges of tensors between ranks that no DistributedDataParallel makes, and the parameters
that an optimizer updates and no wrapped root module holds."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

import torch
from torch import Tensor, distributed

from gpurun.runtime.core.recorder import error_text
from gpurun.runtime.ddp.rank_info import stop_rank

FORGOTTEN = 512
"""After this many steps without it, a parameter is not averaged any more."""


def is_constant(tensor: Tensor) -> bool:
    """True for a tensor that no script writes to, and no exchange can: expanded or sparse."""
    return tensor.layout is not torch.strided or any(
        step == 0 and size > 1 for step, size in zip(tensor.stride(), tensor.shape, strict=True)
    )


def take_from_rank_zero(tensors: Iterable[Tensor]) -> None:
    """Copy the tensors of rank 0. Gloo writes to a slice with gaps as if it had none, so such a
    slice is copied.
    """
    for tensor in tensors:
        if not is_constant(tensor):
            whole = tensor.data.contiguous()
            distributed.broadcast(whole, 0)
            if not tensor.is_contiguous():
                tensor.data.copy_(whole)


def average_gradients(parameters: Sequence[Tensor], ranks: int) -> bool:
    """Average the gradients that some rank has; True if one was missing on another rank."""
    present = torch.tensor(
        [p.grad is not None for p in parameters], dtype=torch.float32, device=parameters[0].device
    )
    distributed.all_reduce(present)
    counts = present.tolist()
    for parameter, count in zip(parameters, counts, strict=True):
        if count:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            _add_up(parameter.grad)
            parameter.grad.div_(ranks)
    return any(0 < count < ranks for count in counts)


def _add_up(gradient: Tensor) -> None:
    try:
        distributed.all_reduce(gradient)
    except RuntimeError as error:
        if not (gradient.is_sparse and distributed.get_backend() == "nccl"):
            raise
        stop_rank(
            f"the ranks cannot exchange sparse gradients: {error_text(error)}",
            "make them dense, as nn.Embedding(sparse=False), or run it without --ddp",
        )


class UnwrappedParameters:
    """Parameters outside any root: of layers that are called beside the model, or of a model that
    is not called itself.

    Parameters of a training that is over are dropped after some steps of other trainings, on all
    ranks at the same step, because their memory is freed at different times.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[Tensor, int]] = {}
        self._steps = 0

    def parameters(self) -> list[Tensor]:
        """The parameters that are or were trained, in the order in which they were found."""
        return [p for p, _ in self._known.values()]

    def collect(self, parameters: Iterable[Tensor], covered: Container[int]) -> list[Tensor]:
        """Remember new parameters that are not `covered`, and return them. A frozen one still takes
        part in a step if it has a gradient."""
        new = []
        for parameter in parameters:
            key = id(parameter)
            if key in covered:
                self._known.pop(key, None)
            elif parameter.is_leaf and (parameter.requires_grad or parameter.grad is not None):
                if key not in self._known:
                    new.append(parameter)
                self._known[key] = parameter, self._steps
        return new

    def stepped(self) -> None:
        """Another step is about to be made."""
        self._steps += 1
        old = [key for key, (_, step) in self._known.items() if self._steps - step > FORGOTTEN]
        for key in old:
            del self._known[key]
