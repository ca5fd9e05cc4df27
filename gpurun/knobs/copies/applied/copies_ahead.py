"""Copies of batches that are on the device before the script asks for them.

A batch that a loader has just pinned is copied at once, on a stream of its own. The script still
gets the host's tensors; where it moves one (`to`, `cuda`) it is handed the copy, if the tensor is
as it was when the copy began.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gpurun.knobs.applied.replaced_methods import Ask, asking_first

DEPTH = 2
"""Batches that lie on the device ahead of their use."""

Signature = tuple[tuple[str, tuple[int, ...]], ...]
"""What tells batches of one kind: type and shape (but for the leading dimension) of each part."""


class Carrier(Protocol):
    """Carries a tensor to the device."""

    def begin(self, tensor: Any, device: Any) -> Any:
        """Begin to copy a tensor of the host; what `finish` needs."""

    def finish(self, begun: Any, device: Any, blocking: bool) -> Any:
        """The copy, safe for the caller's stream; `blocking`: the host's tensor is free again."""


class _Part:
    """One tensor of a batch in the host's memory. It does not keep the tensor alive."""

    def __init__(self, tensor: Any, batch: _Batch, slot: int) -> None:
        self.host = weakref.ref(tensor, lambda _: batch.owner.lost(self))
        self.key = id(tensor)
        self.version = tensor._version
        self.batch = batch
        self.slot = slot
        self.device: Any = None
        self.begun: Any = None


class _Batch:
    """The parts of one batch, and how many copies of them nobody has taken yet."""

    def __init__(self, owner: CopiesAhead, parts: Sequence[Any]) -> None:
        self.owner = owner
        self.signature: Signature = tuple((str(p.dtype), tuple(p.shape[1:])) for p in parts)
        self.parts = [_Part(part, self, slot) for slot, part in enumerate(parts)]
        self.waiting = 0


class CopiesAhead:
    """The batches that loaders have made ready and the script has not moved yet. Thread-safe."""

    def __init__(self, carrier: Carrier) -> None:
        self.parts: dict[int, _Part] = {}
        """By the id of the host's tensor; a part leaves it when the tensor dies or is moved."""
        self._carrier = carrier
        self._wanted: dict[Signature, dict[int, Any]] = {}
        self._ahead: deque[_Batch] = deque()
        self._flying = 0
        # a tensor may die, and be reported lost, wherever memory is collected
        self._lock = threading.RLock()
        self._abandoned = False
        os.register_at_fork(after_in_child=self._abandon)

    def _abandon(self) -> None:
        """A forked loader worker has no device: it touches no copy, nor a lock that is held."""
        self._abandoned = True

    def arrived(self, tensors: Sequence[Any]) -> None:
        """A loader has a batch ready: its tensors, in memory that nobody else writes to."""
        if self._abandoned:
            return
        with self._lock:
            batch = _Batch(self, tensors)
            self.parts.update((part.key, part) for part in batch.parts)
            self._ahead.append(batch)
            self._advance()

    def take(self, tensor: Any, device: Any, blocking: bool) -> Any | None:
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

    def forget(self, tensor: Any) -> None:
        """The tensor may be written to unseen from now on: its copy is of no use."""
        part = self._part(tensor)
        if part is not None:
            self.lost(part)

    def _part(self, tensor: Any) -> _Part | None:
        part = self.parts.get(id(tensor))
        return part if part is not None and part.host() is tensor else None

    def lost(self, part: _Part) -> None:
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

    def _begin(self, batch: _Batch, wanted: dict[int, Any]) -> None:
        for slot, device in wanted.items():
            part = batch.parts[slot]
            tensor: Any = part.host()
            if tensor is None or part.key not in self.parts or part.version != tensor._version:
                continue
            part.device = device
            part.begun = self._carrier.begin(tensor, device)
            batch.waiting += 1
        self._flying += batch.waiting > 0


class SideStream:
    """Carries pinned tensors to a GPU on a stream beside the one that computes."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._move = torch.Tensor.to
        self._streams: dict[Any, Any] = {}

    def begin(self, tensor: Any, device: Any) -> Any:
        """Queue the copy; the tensor with an event that says when it is there."""
        cuda = self._torch.cuda
        stream = self._streams.get(device)
        if stream is None:
            stream = self._streams[device] = cuda.Stream(device)
        with cuda.stream(stream):
            copy = self._move(tensor, device, non_blocking=True)
        return copy, stream.record_event()

    def finish(self, begun: Any, device: Any, blocking: bool) -> Any:
        """Have the current stream wait for the copy and keep its memory while it is used there."""
        copy, there = begun
        current = self._torch.cuda.current_stream(device)
        current.wait_event(there)
        copy.record_stream(current)
        if blocking:
            there.synchronize()  # the script may write to its tensor as soon as we return
        return copy


Moved = tuple[Any, Any, bool, Any]
"""Device, type (None: its own), whether without blocking, memory format (None: its own)."""


def move_asked(torch: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Moved | None:
    """What a call of `Tensor.to` asks for; None where it is not understood."""
    kwargs = {name: value for name, value in kwargs.items() if name != "copy"}
    try:
        device, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
    except (TypeError, RuntimeError):
        return None
    return None if device is None else (device, dtype, bool(non_blocking), memory_format)


def cuda_asked(torch: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Moved | None:
    """The same for `Tensor.cuda`."""
    names = dict(zip(("device", "non_blocking", "memory_format"), args, strict=False)) | kwargs
    device = names.get("device")
    where = ("cuda", device) if isinstance(device, int) else (device or "cuda",)
    non_blocking = bool(names.get("non_blocking", False))
    return torch.device(*where), None, non_blocking, names.get("memory_format")


def numbered(torch: Any, device: Any) -> Any:
    """The device with its index: `cuda` is the current one."""
    if device.type != "cuda" or device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())


Asked = Callable[[Any, tuple[Any, ...], dict[str, Any]], Moved | None]


def answer_moves(torch: Any, answering: Callable[[Asked], Ask]) -> None:
    """Replace the moves of tensors; `answering` makes the answer of what understands a call."""
    tensor = torch.Tensor
    tensor.to = asking_first(tensor.to, answering(move_asked))
    tensor.cuda = asking_first(tensor.cuda, answering(cuda_asked))
