"""A loader worker's own segments of shared memory, written to batch after batch.

A segment is lent again once it is back. Then nothing in the worker leads to it, it was sent to one
place only, and the receiver has released it there. Whatever is not so is never written to again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch.multiprocessing import get_sharing_strategy, reductions

from gpurun.knobs.loading.applied.shared_segments import (
    FREE,
    GONE,
    IN_USE,
    LEAST_BYTES,
    TRAILER,
    Holders,
    Segment,
)

Reduced = tuple[Callable[..., Any], tuple[Any, ...]]
"""The pickle of an object: a function and its arguments."""

BATCHES = 4
"""A ring holds so many times the batches that torch lets a worker be ahead, because a batch may
have several tensors of about one size. It grows only while none is back."""
OVERTAKEN = 4
"""Segments come back in the order in which they were sent. If a later one is back, so many earlier
ones may still be on their way; older ones are lost."""
SHARED_MEMORY = Path("/dev/shm")


class Ring:
    """Segments of about one size, in the order in which they were lent; at most `most`."""

    def __init__(self, most: int) -> None:
        self.segments: list[Segment] = []
        self.largest = 0
        self.closed = False
        self._most = most
        self._misses = 0

    def take(self, nbytes: int) -> Segment | None:
        """One that is back and has room; None where there is none."""
        self.largest = max(self.largest, nbytes)
        self._give_up([s for s in self.segments if s.sent > 1 or s.state == GONE])
        out: list[Segment] = []
        small: list[Segment] = []
        for segment in self.segments:
            if not _is_back(segment):
                out.append(segment)
            elif segment.room < nbytes:
                small.append(segment)
            else:
                self._misses = 0
                self.segments.remove(segment)
                self._give_up(out[:-OVERTAKEN])
                return segment
        self._give_up(small[:1])  # a larger one will take its place
        self._misses = 0 if small else self._misses + 1
        if self._misses > 2 * self._most:
            self.closed = True  # they do not come back
            self._give_up(self.segments)
        return None

    def may_grow(self) -> bool:
        """True if there may be one more."""
        return not self.closed and len(self.segments) < self._most

    def give_up_idle(self) -> None:
        """Free the memory of those that are back."""
        self._give_up([s for s in self.segments if _is_back(s)])

    def _give_up(self, segments: Sequence[Segment]) -> None:
        for segment in tuple(segments):
            segment.retire()
            self.segments.remove(segment)


def _is_back(segment: Segment) -> bool:
    # alone first: what is still held here may be sent at any moment, by the thread of a queue
    return segment.alone() and (segment.sent == 0 or (segment.sent == 1 and segment.state == FREE))


class Lender:
    """Lends segments in the worker processes that are forked from the one that made it.

    `make`: makes a shared storage of so many bytes as torch does. `token`: signs the segments.
    `prefetch`: batches that a worker may be ahead.
    """

    def __init__(
        self,
        make: Callable[[int], torch.UntypedStorage],
        token: bytes,
        holders: Holders,
        prefetch: int,
    ) -> None:
        self._make = make
        self._token = token
        self._holders = holders
        self._most = BATCHES * (prefetch + 2)
        self._rings: dict[int, Ring] = {}
        self._lent: WeakValueDictionary[int, Segment] = WeakValueDictionary()
        self._parent = os.getpid()
        self._worker: int | None = None

    def lend(self, nbytes: int) -> torch.UntypedStorage | None:
        """A storage with room for so many bytes; None where torch shall make one."""
        if nbytes < LEAST_BYTES or not self._in_worker():
            return None
        if get_sharing_strategy() != "file_descriptor":  # type: ignore[no-untyped-call]
            return None
        ring = self._rings.setdefault(nbytes.bit_length(), Ring(self._most))
        if ring.closed:
            return None
        segment = ring.take(nbytes) or self._new(ring)
        if segment is None:
            return None
        segment.sent = 0
        segment.state = IN_USE
        ring.segments.append(segment)
        return segment.storage

    def _new(self, ring: Ring) -> Segment | None:
        nbytes = -(-ring.largest // TRAILER) * TRAILER + TRAILER
        if not ring.may_grow():
            return None
        if not _leaves_half(nbytes):
            for each in self._rings.values():
                each.give_up_idle()
            return None
        segment = Segment(self._make(nbytes), self._holders)
        segment.sign(self._token)
        self._lent[segment.number] = segment
        return segment

    def _in_worker(self) -> bool:
        """True if this is the worker itself: a child of it must not lend what the worker lends."""
        here = os.getpid()
        if self._worker is None and here != self._parent:
            self._worker = here if os.getppid() == self._parent else -1
            self._count_sendings()
        return here == self._worker

    def _count_sendings(self) -> None:
        original: Callable[[torch.UntypedStorage], Reduced] = reductions.reduce_storage

        def reduce(storage: torch.UntypedStorage) -> Reduced:
            segment = self._lent.get(storage._cdata)
            if segment is not None:
                segment.sent += 1
            return original(storage)

        ForkingPickler.register(torch.UntypedStorage, reduce)


def _leaves_half(nbytes: int) -> bool:
    """True if half of the shared memory stays free for other uses (docker grants 64 MB)."""
    try:
        status = os.statvfs(SHARED_MEMORY)
    except OSError:
        return False
    return (status.f_bavail - status.f_blocks // 2) * status.f_frsize > nbytes
