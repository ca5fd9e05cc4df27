"""Saved tensors of one forward pass, kept in page-locked host memory until they are needed."""

from __future__ import annotations

import weakref
from collections import deque

import torch
from torch import Tensor

IN_FLIGHT_BYTES = 64 << 20
"""Copies under way take at most about this much of the device's memory, in either direction."""


class Kept:
    """One tensor on the host; `back`: its copy on the device while that is fetched ahead, and the
    event that says when it is there.
    """

    def __init__(self, host: Tensor, device: torch.device, number: int) -> None:
        self.host = host
        self.device = device
        self.number = number
        self.back: tuple[Tensor, torch.cuda.Event] | None = None


class HostCopies:
    """Copies tensors to the host on `stream`, and back in the opposite order ahead of their use.

    The host waits for the device if it would run further ahead than `IN_FLIGHT_BYTES`. Otherwise
    the allocator could not reuse memory that a copy still reads, and no memory would be saved.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._kept: list[weakref.ref[Kept]] = []
        self._leaving: deque[tuple[torch.cuda.Event, Tensor]] = deque()
        self._returned: deque[tuple[torch.cuda.Event, int]] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, tensor: Tensor) -> Kept:
        """Start to copy a tensor of this device to the host."""
        stream = self._stream
        source = tensor.detach()
        host = torch.empty_like(source, device="cpu", pin_memory=True)
        stream.wait_stream(torch.cuda.current_stream(source.device))
        with torch.cuda.stream(stream):
            host.copy_(source, non_blocking=True)
            done = stream.record_event()
        self._leaving.append((done, source))
        self._wait_for_copies(IN_FLIGHT_BYTES)
        kept = Kept(host, source.device, len(self._kept))
        self._kept.append(weakref.ref(kept))
        return kept

    def finish(self) -> None:
        """The forward pass is over: wait until the device's memory is free."""
        self._wait_for_copies(0)

    def give(self, kept: Kept) -> Tensor:
        """The tensor on its device again, to be used on the present stream."""
        present = torch.cuda.current_stream(kept.device)
        self._returned.append((present.record_event(), kept.host.nbytes))
        while len(self._returned) > 1 and sum(n for _, n in self._returned) > IN_FLIGHT_BYTES:
            self._returned.popleft()[0].synchronize()
        tensor, arrived = self._fetch(kept)
        self._fetch_ahead(kept.number)
        present.wait_event(arrived)
        kept.back = None
        tensor.record_stream(present)
        return tensor

    def _wait_for_copies(self, allowed: int) -> None:
        while sum(source.nbytes for _, source in self._leaving) > allowed:
            self._leaving.popleft()[0].synchronize()

    def _fetch_ahead(self, number: int) -> None:
        """Fetch the tensors that were kept before: a backward pass needs them next."""
        ahead = 0
        for reference in reversed(self._kept[:number]):
            kept = reference()
            if kept is None:
                continue
            ahead += kept.host.nbytes
            if ahead > IN_FLIGHT_BYTES:
                return
            self._fetch(kept)

    def _fetch(self, kept: Kept) -> tuple[Tensor, torch.cuda.Event]:
        """The copy on the device, and the event that says when it is there."""
        if kept.back is None:
            with torch.cuda.stream(self._stream):
                back = torch.empty_like(kept.host, device=kept.device)
                back.copy_(kept.host, non_blocking=True)
                kept.back = back, self._stream.record_event()
        return kept.back
