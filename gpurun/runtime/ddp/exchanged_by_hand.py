"""Exchanges of tensors between ranks that no DistributedDataParallel makes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, distributed

from gpurun.runtime.core.recorder import error_text
from gpurun.runtime.ddp.rank_info import stop_rank
from gpurun.runtime.ddp.wrapped_root import is_constant


def take_from_rank_zero(tensor: Tensor) -> None:
    """Copy the tensor of rank 0. Gloo writes to a slice with gaps as if it had none, so such a
    slice is copied.
    """
    if is_constant(tensor):
        return
    whole = tensor.contiguous()
    distributed.broadcast(whole, 0)
    if not tensor.is_contiguous():
        tensor.copy_(whole)


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
