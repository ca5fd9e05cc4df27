"""The receiver of workers' segments: it says when one may be written to again.

This happens once torch has copied each of its tensors to page-locked memory, if nothing else has
led to it since it arrived. Batches of a type that torch does not know, or that pin themselves, may
still be read: their segments are never given back.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpurun.knobs.loading.applied.shared_segments import FREE, GONE, LEAST_BYTES, Holders, Segment

MOST_KEPT = 256
"""Each keeps a file open."""


class Returns:
    """The segments that one thread that pins batches has received. The memory stays mapped while
    this lives."""

    def __init__(self, token: bytes, holders: Holders) -> None:
        self._token = token
        self._holders = holders
        self._kept: dict[int, Segment] = {}
        self._copied: dict[int, set[int]] = {}
        self._due: list[int] = []

    def copied(self, tensor: Tensor, pinned: Tensor) -> None:
        """A tensor of the message in hand was copied by torch to `pinned`."""
        if tensor.layout is not torch.strided or tensor.is_nested:
            return
        storage = tensor.untyped_storage()
        if pinned is tensor or pinned.data_ptr() == tensor.data_ptr():
            return  # page-locked already
        number = storage._cdata
        if number in self._kept or self._keep(storage):
            self._copied.setdefault(number, set()).add(id(tensor))

    def finished(self) -> None:
        """All of the message is copied, and nobody has seen it yet."""
        for number, tensors in self._copied.items():
            if self._kept[number].held_by(len(tensors)):
                self._due.append(number)
            else:
                self._let_go(number)
        self._copied.clear()

    def give_back(self) -> int:
        """Give back the segments that only we hold once the message is gone; returns their
        number."""
        given = 0
        for number in self._due:
            segment = self._kept[number]
            if not segment.alone():
                self._let_go(number)
            elif segment.retired:
                del self._kept[number]
            else:
                segment.state = FREE
                self._kept[number] = self._kept.pop(number)
                given += 1
        for number in self._copied:
            self._let_go(number)  # the message could not be pinned
        self._due.clear()
        self._copied.clear()
        self._forget_one()
        return given

    def _keep(self, storage: torch.UntypedStorage) -> bool:
        """Know a segment that comes for the first time."""
        if storage.nbytes() <= LEAST_BYTES or len(self._kept) >= MOST_KEPT:
            return False
        segment = Segment(storage, self._holders)
        if not segment.signed(self._token):
            return False
        self._kept[segment.number] = segment
        return True

    def _let_go(self, number: int) -> None:
        self._kept.pop(number).state = GONE

    def _forget_one(self) -> None:
        """The one that was not seen for longest, if its worker has given it up."""
        number = next(iter(self._kept), None)
        if number is not None:
            segment = self._kept.pop(number)
            if not segment.retired:
                self._kept[number] = segment
