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
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import torch
from torch import Tensor

B = TypeVar("B")

DEPTH = 2
"""Batches that lie on the device ahead of their use."""

Signature = tuple[tuple[str, tuple[int, ...]], ...]
"""The kind of a batch: type and shape (but for the leading dimension) of each part."""


class Carrier(Protocol[B]):
    """Carries a tensor to the device."""

    def begin(self, tensor: Tensor, device: torch.device) -> B:
        """Begin to copy a tensor of the host; returns what `finish` needs."""

    def finish(self, begun: B, device: torch.device, blocking: bool) -> Tensor:
        """The copy, safe for the caller's stream; `blocking`: the host's tensor is free again."""


class _HostTensor(Generic[B]):
    """One tensor of a batch in the host's memory. It does not keep the tensor alive."""

    def __init__(self, tensor: Tensor, batch: _Batch[B], slot: int) -> None:
        self.host = weakref.ref(tensor, lambda _: batch.owner.lost(self))
        self.key = id(tensor)
        self.version = tensor._version
        self.batch = batch
        self.slot = slot
        self.device: torch.device | None = None
        self.begun: B | None = None


class _Batch(Generic[B]):
    """The parts of one batch, and how many copies of them nobody has taken yet."""

    def __init__(self, owner: CopiesAhead[B], parts: Sequence[Tensor]) -> None:
        self.owner = owner
        self.signature: Signature = tuple((str(p.dtype), tuple(p.shape[1:])) for p in parts)
        self.parts = [_HostTensor(part, self, slot) for slot, part in enumerate(parts)]
        self.waiting = 0


class CopiesAhead(Generic[B]):
    """The batches that loaders have made ready and the script has not moved yet. Thread-safe."""

    def __init__(self, carrier: Carrier[B]) -> None:
        self.parts: dict[int, _HostTensor[B]] = {}
        """By the id of the host's tensor; a part leaves it when the tensor dies or is moved."""
        self._carrier = carrier
        self._wanted: dict[Signature, dict[int, torch.device]] = {}
        self._ahead: deque[_Batch[B]] = deque()
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

    def _part(self, tensor: Tensor) -> _HostTensor[B] | None:
        part = self.parts.get(id(tensor))
        return part if part is not None and part.host() is tensor else None

    def lost(self, part: _HostTensor[B]) -> None:
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

    def _begin(self, batch: _Batch[B], wanted: dict[int, torch.device]) -> None:
        for slot, device in wanted.items():
            part = batch.parts[slot]
            tensor = part.host()
            if tensor is None or part.key not in self.parts or part.version != tensor._version:
                continue
            part.device = device
            part.begun = self._carrier.begin(tensor, device)
            batch.waiting += 1
        self._flying += batch.waiting > 0


Begun = tuple[Tensor, torch.cuda.Event]


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
