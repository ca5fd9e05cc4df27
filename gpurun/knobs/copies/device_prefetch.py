"""Copy batches to the GPU ahead of their use, beside the kernels of the step before."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, KnobBase, Skip
from gpurun.knobs.applied.replaced_methods import Ask, asking_first
from gpurun.knobs.copies.applied.copies_ahead import (
    Asked,
    CopiesAhead,
    SideStream,
    answer_moves,
    numbered,
)
from gpurun.knobs.loading.loader_need import not_fed_from_host, pinned_batches
from gpurun.records.facts import Facts

CHECKED = 8
"""So many of the first copies are compared with the script's own."""


class DevicePrefetch(KnobBase):
    """The device copy of a batch begins when the loader has pinned it ("ahead").

    Helps wherever the script moves batches to the GPU with `x.to(device)`: a blocking copy first
    waits for all kernels of the step before, so that the host cannot run ahead, and the GPU idles
    while it copies. The loader still hands out tensors of the host; where the script moves one, it
    gets the copy that is there already, or on its way.

    How it bites: two batches more lie in device memory. A tensor that was changed since, by
    operations of torch or through `numpy()`, is copied anew; one changed behind torch's back would
    be stale, so the first copies are compared, and one difference ends it all. It needs pinned
    batches: their memory is never reused for the next one while a copy is under way.
    """

    name: ClassVar[str] = "device_prefetch"
    effect: ClassVar[Effect] = Effect.PIPELINE
    order: ClassVar[int] = 18
    likely: ClassVar[bool] = True

    def candidates(self, facts: Facts) -> Sequence[str] | Skip:
        """Ahead, where a loader feeds a training on the GPU from the host."""
        if facts.device != "cuda":
            return Skip("training is not on a GPU")
        return not_fed_from_host(facts) or ["ahead"]

    def companions(self, facts: Facts, value: str) -> dict[str, bool]:
        """Pinned batches."""
        return pinned_batches(facts)

    def apply(self, value: str, hooks: Hooks) -> None:
        """Stand where loaders pin and where tensors move."""
        if value != "ahead":
            hooks.skipped(f"unknown value {value!r}")
            return

        def loaders_are_here(pinning: ModuleType) -> None:
            import torch

            if not torch.cuda.is_available():
                hooks.skipped("there is no GPU to copy to")
                return
            Prefetch(torch, CopiesAhead(SideStream(torch)), hooks, "cuda").install(pinning)

        hooks.on_import("torch.utils.data._utils.pin_memory", loaders_are_here)


class Prefetch:
    """Connects copies with where batches are pinned, and with where the script moves tensors.

    `kind`: the type of device to which moves are watched.
    """

    def __init__(self, torch: Any, copies: CopiesAhead, hooks: Hooks, kind: str) -> None:
        self._torch = torch
        self._copies = copies
        self._hooks = hooks
        self._kind = kind
        self._pinning = threading.local()
        self._to_check = CHECKED
        self._off = False

    def install(self, pinning: Any) -> None:
        """Replace `pin_memory` of torch's loaders and the moves of tensors."""
        tensor = self._torch.Tensor
        self._plain_to = tensor.to
        pinning.pin_memory = self._watched_pin(pinning.pin_memory)
        answer_moves(self._torch, self._moving)
        for name in ("numpy", "__dlpack__"):
            setattr(tensor, name, asking_first(getattr(tensor, name), self._leaking))

    def _watched_pin(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Torch's own function calls itself for the parts of a batch: the outermost call counts."""

        def pin_memory(data: Any, *args: Any, **kwargs: Any) -> Any:
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

    def _arrived(self, data: Any, pinned: Any) -> None:
        from gpurun.runtime.core.tensor_values import tensors

        before = {id(part) for part in tensors(data)}  # pinned already: the script's own buffer
        fresh = [x for x in tensors(pinned) if id(x) not in before and self._plain(x)]
        if fresh:
            self._copies.arrived(fresh)

    def _plain(self, tensor: Any) -> bool:
        torch = self._torch
        return type(tensor) is torch.Tensor and not tensor.requires_grad and bool(tensor.dim())

    def _moving(self, asked: Asked) -> Ask:
        """Hands out the copy of a tensor that the script moves, where there is one."""
        parts = self._copies.parts

        def ask(tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any | None:
            if id(tensor) not in parts:
                return None
            return self._guarded(lambda: self._handed_out(tensor, asked, args, kwargs))

        return ask

    def _leaking(self, tensor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What is handed to numpy and others can be written to without torch's knowledge."""
        if id(tensor) in self._copies.parts:
            self._guarded(lambda: self._copies.forget(tensor))

    def _handed_out(
        self, tensor: Any, asked: Asked, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any | None:
        move = asked(self._torch, args, kwargs)
        if move is None or move[0].type != self._kind:
            return None
        device, dtype, non_blocking, memory_format = move
        device = numbered(self._torch, device)
        copy = self._copies.take(tensor, device, blocking=not non_blocking)
        if copy is None or self._off or not self._same(copy, tensor, device):
            return None
        self._hooks.applied(f"copied ahead to {device}")
        if dtype is not None:
            copy = self._plain_to(copy, dtype)
        if memory_format is not None:
            copy = copy.contiguous(memory_format=memory_format)
        return copy

    def _same(self, copy: Any, tensor: Any, device: Any) -> bool:
        if not self._to_check:
            return True
        self._to_check -= 1
        own = self._plain_to(tensor, device)
        same = copy.shape == own.shape and bool(((copy == own) | (copy != copy)).all())
        if not same:
            self._give_up("a batch was changed behind torch's back")
        return same

    def _guarded(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Exception as error:
            self._give_up(f"{type(error).__name__}: {error}")
            return None

    def _give_up(self, why: str) -> None:
        self._off = True
        self._copies.parts.clear()
        self._hooks.revoked(why)
