"""Copies of batches that are on the device before the script asks for them.

A batch that a loader has just pinned is copied at once, on a stream of its own. The script still
gets the host's tensors. If it moves one (`to`, `cuda`), it gets the copy, provided that the tensor
has not changed since the copy began.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

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

DEPTH = 2
"""Batches that lie on the device ahead of their use."""

Signature = tuple[tuple[str, tuple[int, ...]], ...]
"""The kind of a batch: type and shape (but for the leading dimension) of each part."""
Begun = tuple[Tensor, torch.cuda.Event]
"""A copy that is on its way, and the event that says when it is there."""


class _HostTensor:
    """One tensor of a batch in the host's memory. It does not keep the tensor alive."""

    def __init__(self, tensor: Tensor, batch: _Batch, slot: int) -> None:
        self.host = weakref.ref(tensor, lambda _: batch.owner.lost(self))
        self.key = id(tensor)
        self.version = tensor._version
        self.batch = batch
        self.slot = slot
        self.device: torch.device | None = None
        self.begun: Begun | None = None


class _Batch:
    """The parts of one batch, and how many copies of them nobody has taken yet."""

    def __init__(self, owner: CopiesAhead, parts: Sequence[Tensor]) -> None:
        self.owner = owner
        self.signature: Signature = tuple((str(p.dtype), tuple(p.shape[1:])) for p in parts)
        self.parts = [_HostTensor(part, self, slot) for slot, part in enumerate(parts)]
        self.waiting = 0


class CopiesAhead:
    """The batches that loaders have made ready and the script has not moved yet. Thread-safe."""

    def __init__(self, carrier: SideStream) -> None:
        self.parts: dict[int, _HostTensor] = {}
        """By the id of the host's tensor; a part leaves it when the tensor dies or is moved."""
        self._carrier = carrier
        self._wanted: dict[Signature, dict[int, torch.device]] = {}
        self._ahead: deque[_Batch] = deque()
        self._flying = 0
        # a tensor may die, and be reported lost, wherever memory is collected
        self._lock = threading.RLock()
        self._abandoned = False
        os.register_at_fork(after_in_child=self._abandon)

    def _abandon(self) -> None:
        """A forked loader worker has no device: it touches no copy, nor a lock that is held."""
        self._abandoned = True

    def arrived(self, tensors: Sequence[Tensor]) -> None:
        """A loader has a batch ready: its tensors, in memory that nobody else writes to."""
        if self._abandoned:
            return
        with self._lock:
            batch = _Batch(self, tensors)
            self.parts.update((part.key, part) for part in batch.parts)
            self._ahead.append(batch)
            self._advance()

    def take(self, tensor: Tensor, device: torch.device, blocking: bool) -> Tensor | None:
        """The copy of a tensor that the script moves to a device; None if there is none."""
        if self._abandoned:
            return None
        with self._lock:
            part = self._part(tensor)
            if part is None:
                return None
            self._wanted.setdefault(part.batch.signature, {})[part.slot] = device
            begun, fits = part.begun, part.device == device and part.version == tensor._version
            self.lost(part)
        if begun is None or not fits:
            return None
        return self._carrier.finish(begun, device, blocking)

    def forget(self, tensor: Tensor) -> None:
        """The tensor may be written to unseen from now on: its copy is of no use."""
        part = self._part(tensor)
        if part is not None:
            self.lost(part)

    def _part(self, tensor: Tensor) -> _HostTensor | None:
        part = self.parts.get(id(tensor))
        return part if part is not None and part.host() is tensor else None

    def lost(self, part: _HostTensor) -> None:
        """A part is moved, forgotten or dead: the next batch has room."""
        if self._abandoned:
            return
        with self._lock:
            if self.parts.get(part.key) is part:
                del self.parts[part.key]
            if part.begun is not None:
                part.begun = None
                part.batch.waiting -= 1
                if part.batch.waiting == 0:
                    self._flying -= 1
            self._advance()

    def _advance(self) -> None:
        unknown = []
        while self._ahead and self._flying < DEPTH:
            batch = self._ahead.popleft()
            wanted = self._wanted.get(batch.signature)
            if wanted is not None:
                self._begin(batch, wanted)
            elif any(part.host() is not None for part in batch.parts):
                unknown.append(batch)
        self._ahead.extendleft(reversed(unknown))

    def _begin(self, batch: _Batch, wanted: dict[int, torch.device]) -> None:
        for slot, device in wanted.items():
            part = batch.parts[slot]
            tensor = part.host()
            if tensor is None or part.key not in self.parts or part.version != tensor._version:
                continue
            part.device = device
            part.begun = self._carrier.begin(tensor, device)
            batch.waiting += 1
        self._flying += batch.waiting > 0


class SideStream:
    """Carries pinned tensors to a GPU on a stream beside the one that computes."""

    def __init__(self) -> None:
        self._move = Tensor.to
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def begin(self, tensor: Tensor, device: torch.device) -> Begun:
        """Queue the copy; the tensor with an event that says when it is there."""
        cuda = torch.cuda
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = cuda.Stream(device)  # type: ignore[no-untyped-call]
        with cuda.stream(stream):
            copy = self._move(tensor, device, non_blocking=True)
        return copy, stream.record_event()

    def finish(self, begun: Begun, device: torch.device, blocking: bool) -> Tensor:
        """Have the current stream wait for the copy and keep its memory while it is used there."""
        copy, there = begun
        current = torch.cuda.current_stream(device)
        current.wait_event(there)
        copy.record_stream(current)
        if blocking:
            there.synchronize()  # the script may write to its tensor as soon as we return
        return copy


P = ParamSpec("P")
R = TypeVar("R")

CHECKED = 8
"""So many of the first copies are compared with the script's own."""


class BatchesAhead:
    """Connects copies with where batches are pinned, and with where the script moves tensors.

    `kind`: the type of device to which moves are watched.
    """

    def __init__(self, copies: CopiesAhead, hooks: Hooks, kind: str) -> None:
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
