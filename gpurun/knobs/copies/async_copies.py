"""Copy what the script itself moves to the GPU without waiting for the GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, KnobBase, Skip
from gpurun.knobs.applied.replaced_methods import Ask
from gpurun.knobs.copies.applied.copies_ahead import Asked, answer_moves
from gpurun.records.facts import Facts

LARGEST_BYTES = 64 << 20
"""Larger tensors are no batches: they would keep as much page-locked memory for nothing."""


class AsyncCopies(KnobBase):
    """The script's own `x.to(device)` and `x.cuda()` return before the GPU is there ("stage").

    Helps where the script makes its batches without a DataLoader. Such a copy waits until the GPU
    has done all that was queued before it; then the GPU idles while the host prepares and launches
    the next step. So the tensor is first copied to page-locked memory, from which the GPU fetches
    it in its own time. What the script does with its tensor afterwards changes nothing.

    How it bites: each copy is made twice, and torch keeps the page-locked memory. Moved as ever:
    what is moved before the first step is done (models, data sets), tensors above 64 MiB, complex
    and page-locked ones, those of other classes, and those that need gradients.
    """

    name: ClassVar[str] = "async_copies"
    effect: ClassVar[Effect] = Effect.PIPELINE
    order: ClassVar[int] = 9
    likely: ClassVar[bool] = True

    def candidates(self, facts: Facts) -> Sequence[str] | Skip:
        """Stage, where no loader feeds a training on the GPU."""
        if facts.device != "cuda":
            return Skip("training is not on a GPU")
        if facts.loaders_of_training():
            return Skip("a DataLoader feeds the training: device_prefetch copies what it hands out")
        return ["stage"]

    def apply(self, value: str, hooks: Hooks) -> None:
        """Stand where tensors move."""
        if value != "stage":
            hooks.skipped(f"unknown value {value!r}")
            return

        def torch_is_here(torch: ModuleType) -> None:
            staging = Staging(torch, hooks, "cuda", lambda tensor: _page_locked(torch, tensor))
            staging.install()
            hooks.on_step(staging.step_done)

        hooks.on_import("torch", torch_is_here)


class Staging:
    """Answers moves of plain tensors to devices of one `kind` by way of what `stage` returns."""

    def __init__(
        self, torch: Any, hooks: Hooks, kind: str, stage: Callable[[Any], Any | None]
    ) -> None:
        self._torch = torch
        self._hooks = hooks
        self._kind = kind
        self._stage = stage
        self._plain_to = torch.Tensor.to
        self._training = self._over = False

    def install(self) -> None:
        """Replace the moves of tensors."""
        answer_moves(self._torch, self._moving)

    def step_done(self, step: int) -> None:
        """From now on what is moved are batches."""
        self._training = not self._over

    def _moving(self, asked: Asked) -> Ask:
        def ask(tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any | None:
            if not self._training or not self._fits(tensor):
                return None
            try:
                return self._moved(tensor, asked(self._torch, args, kwargs))
            except Exception as error:  # no page-locked memory left: the script's own move must do
                self._over, self._training = True, False
                self._hooks.revoked(f"{type(error).__name__}: {error}")
                return None

        return ask

    def _fits(self, tensor: Any) -> bool:
        torch = self._torch
        return (
            type(tensor) is torch.Tensor
            and tensor.device.type == "cpu"
            and tensor.layout is torch.strided
            and not (tensor.requires_grad or tensor.is_complex() or tensor.is_quantized)
            and not (tensor.is_nested or tensor.is_neg() or tensor.is_inference())
            and tensor.nbytes <= LARGEST_BYTES
        )

    def _moved(self, tensor: Any, move: tuple[Any, Any, bool, Any] | None) -> Any | None:
        if move is None or move[0].type != self._kind:
            return None
        device, dtype, _, memory_format = move
        staged = self._stage(tensor)
        if staged is None:
            return None
        layout = {} if memory_format is None else {"memory_format": memory_format}
        moved = self._plain_to(staged, device, dtype or tensor.dtype, non_blocking=True, **layout)
        self._hooks.applied("by way of page-locked memory")
        return moved


def _page_locked(torch: Any, tensor: Any) -> Any | None:
    """A copy in page-locked memory; None where the tensor is there already, or in a capture."""
    if tensor.is_pinned() or torch.cuda.is_current_stream_capturing():
        return None
    return torch.empty_like(tensor, pin_memory=True).copy_(tensor)
