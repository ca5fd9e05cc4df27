"""Move tensors to the GPU by way of page-locked memory, so that the host need not wait."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from gpurun.knobs.api import Hooks
from gpurun.knobs.applied.replaced_calls import Args, Ask, Asked, Kwargs, Moved, answer_moves

LARGEST_BYTES = 64 << 20
"""Larger tensors are no batches: they would keep as much page-locked memory for nothing."""


class StagedMoves:
    """Answers moves of plain tensors to devices of one `kind` by way of what `stage` returns."""

    def __init__(self, hooks: Hooks, kind: str, stage: Callable[[Tensor], Tensor | None]) -> None:
        self._hooks = hooks
        self._kind = kind
        self._stage = stage
        self._plain_to = Tensor.to
        self._training = self._over = False

    def install(self) -> None:
        """Replace the moves of tensors."""
        answer_moves(self._moving)

    def step_done(self, step: int) -> None:
        """From now on what is moved are batches."""
        self._training = not self._over

    def _moving(self, asked: Asked) -> Ask:
        def ask(tensor: Tensor, args: Args, kwargs: Kwargs) -> Tensor | None:
            if not self._training or not self._fits(tensor):
                return None
            try:
                return self._moved(tensor, asked(args, kwargs))
            except Exception as error:  # no page-locked memory left: the script's own move must do
                self._over, self._training = True, False
                self._hooks.revoked(f"{type(error).__name__}: {error}")
                return None

        return ask

    def _fits(self, tensor: Tensor) -> bool:
        return (
            type(tensor) is Tensor
            and tensor.device.type == "cpu"
            and tensor.layout is torch.strided
            and not (tensor.requires_grad or tensor.is_complex() or tensor.is_quantized)
            and not (tensor.is_nested or tensor.is_neg() or tensor.is_inference())
            and tensor.nbytes <= LARGEST_BYTES
        )

    def _moved(self, tensor: Tensor, move: Moved | None) -> Tensor | None:
        if move is None or move[0].type != self._kind:
            return None
        device, dtype, _, memory_format = move
        staged = self._stage(tensor)
        if staged is None:
            return None
        to = functools.partial(self._plain_to, staged, device, dtype or tensor.dtype, True)
        moved: Tensor = to() if memory_format is None else to(memory_format=memory_format)
        self._hooks.applied("by way of page-locked memory")
        return moved


def page_locked(tensor: Tensor) -> Tensor | None:
    """A copy in page-locked memory; None where the tensor is there already, or in a capture."""
    if tensor.is_pinned() or torch.cuda.is_current_stream_capturing():
        return None
    return torch.empty_like(tensor, pin_memory=True).copy_(tensor)
