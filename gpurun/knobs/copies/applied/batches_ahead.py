"""Connect copies that are made ahead with the loaders that pin and the script that moves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from gpurun.knobs.api import Hooks
from gpurun.knobs.applied.replaced_calls import (
    Args,
    Ask,
    Asked,
    Kwargs,
    answer_moves,
    intercepted,
    numbered,
)
from gpurun.knobs.copies.applied.copies_ahead import B, CopiesAhead

P = ParamSpec("P")
R = TypeVar("R")

CHECKED = 8
"""So many of the first copies are compared with the script's own."""


class BatchesAhead(Generic[B]):
    """Connects copies with where batches are pinned, and with where the script moves tensors.

    `kind`: the type of device to which moves are watched.
    """

    def __init__(self, copies: CopiesAhead[B], hooks: Hooks, kind: str) -> None:
        self._copies = copies
        self._hooks = hooks
        self._kind = kind
        self._pinning = threading.local()
        self._to_check = CHECKED
        self._off = False

    def install(self, pinning: Any) -> None:
        """Replace `pin_memory` of torch's loaders and the moves of tensors."""
        self._plain_to = Tensor.to
        pinning.pin_memory = self._watched_pin(pinning.pin_memory)
        answer_moves(self._moving)
        for name in ("numpy", "__dlpack__"):
            setattr(Tensor, name, intercepted(getattr(Tensor, name), self._leaking))

    def _watched_pin(
        self, original: Callable[Concatenate[object, P], R]
    ) -> Callable[Concatenate[object, P], R]:
        """Torch's own function calls itself for the parts of a batch: the outermost call counts."""

        def pin_memory(data: object, /, *args: P.args, **kwargs: P.kwargs) -> R:
            if self._off or getattr(self._pinning, "inside", False):
                return original(data, *args, **kwargs)
            self._pinning.inside = True
            try:
                pinned = original(data, *args, **kwargs)
            finally:
                self._pinning.inside = False
            self._guarded(lambda: self._arrived(data, pinned))
            return pinned

        return pin_memory

    def _arrived(self, data: object, pinned: object) -> None:
        before = {id(part) for part in _tensors(data)}  # pinned already: the script's own buffer
        fresh = [x for x in _tensors(pinned) if id(x) not in before and self._plain(x)]
        if fresh:
            self._copies.arrived(fresh)

    def _plain(self, tensor: Tensor) -> bool:
        return type(tensor) is Tensor and not tensor.requires_grad and bool(tensor.dim())

    def _moving(self, asked: Asked) -> Ask:
        """Hands out the copy of a tensor that the script moves, where there is one."""
        parts = self._copies.parts

        def ask(tensor: Tensor, args: Args, kwargs: Kwargs) -> Tensor | None:
            if id(tensor) not in parts:
                return None
            return self._guarded(lambda: self._handed_out(tensor, asked, args, kwargs))

        return ask

    def _leaking(self, tensor: Tensor, args: Args, kwargs: Kwargs) -> None:
        """Tensors that are handed to numpy and others can change without torch's knowledge."""
        if id(tensor) in self._copies.parts:
            self._guarded(lambda: self._copies.forget(tensor))

    def _handed_out(
        self, tensor: Tensor, asked: Asked, args: Args, kwargs: Kwargs
    ) -> Tensor | None:
        move = asked(args, kwargs)
        if move is None or move[0].type != self._kind:
            return None
        device, dtype, non_blocking, memory_format = move
        device = numbered(device)
        copy = self._copies.take(tensor, device, blocking=not non_blocking)
        if copy is None or self._off or not self._same(copy, tensor, device):
            return None
        self._hooks.applied(f"copied ahead to {device}")
        if dtype is not None:
            copy = self._plain_to(copy, dtype)
        if memory_format is not None:
            copy = copy.contiguous(memory_format=memory_format)
        return copy

    def _same(self, copy: Tensor, tensor: Tensor, device: torch.device) -> bool:
        if not self._to_check:
            return True
        self._to_check -= 1
        own = self._plain_to(tensor, device)
        same = copy.shape == own.shape and bool(((copy == own) | (copy != copy)).all())
        if not same:
            self._give_up("a batch was changed without torch's knowledge")
        return same

    def _guarded(self, action: Callable[[], R]) -> R | None:
        try:
            return action()
        except Exception as error:
            self._give_up(f"{type(error).__name__}: {error}")
            return None

    def _give_up(self, why: str) -> None:
        self._off = True
        self._copies.parts.clear()
        self._hooks.revoked(why)


def _tensors(batch: object) -> Iterator[Tensor]:
    """The tensors of a batch, in the containers that torch pins."""
    if isinstance(batch, Tensor):
        yield batch
    elif isinstance(batch, (Mapping, list, tuple)):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _tensors(part)
