"""A segment of shared memory that carries, behind its data, whether it may be written to again.

A loader worker writes a batch into it and the script's process maps it. Its last 64 bytes are not
data. They hold a token by which the receiver recognises the segment, the identity of its file (so
that a copy of the bytes is not mistaken for it), and one byte for each side as a message.

The receiver gives a segment back once torch has copied each of its tensors to page-locked memory,
if nothing else has led to it since it arrived. Batches of a type that torch does not know, or that
pin themselves, may still be read: their segments are never given back.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

import torch
from torch import Tensor

LEAST_BYTES = 256 << 10
"""Below it a new segment costs no more than to know one that is back."""
TRAILER = 64
TOKEN = 16
_FILE = struct.Struct("=QQ")
_STATE = TOKEN + _FILE.size
_RETIRED = _STATE + 1

IN_USE, FREE, GONE = 0x11, 0x5A, 0xA5
"""The receiver's message: it may still read the segment; the worker may write to it again; it never
may."""

Holders = tuple[int, int]
"""Counts of a storage's memory (torch) and object (python); see `holders_when_alone`."""


class Segment:
    """One process's end of a segment, whose storage it holds. `sent`: how often it was pickled."""

    def __init__(self, storage: torch.UntypedStorage, holders: Holders) -> None:
        self.storage = storage
        self.number: int = storage._cdata
        self.room: int = storage.nbytes() - TRAILER
        self.sent = 0
        self._count = torch._C._storage_Use_Count
        self._address = storage.data_ptr()
        self._holders = holders

    def sign(self, token: bytes) -> None:
        """Write the trailer: in use."""
        signed = token + _FILE.pack(*_file(self.storage)) + bytes((IN_USE, 0))
        ctypes.memmove(self._address + self.room, signed, len(signed))

    def signed(self, token: bytes) -> bool:
        """True if it was signed with this token, and is not a copy of a segment that was."""
        trailer = ctypes.string_at(self._address + self.room, TRAILER)
        if not trailer.startswith(token) or not self.storage.is_shared():
            return False
        return _FILE.unpack_from(trailer, TOKEN) == _file(self.storage)

    def holders(self) -> Holders:
        """Who holds the memory, and who holds python's object of it."""
        return self._count(self.number), sys.getrefcount(self.storage)

    def alone(self) -> bool:
        """True if nothing in this process but this object leads to the memory any more."""
        return self.holders() == self._holders and self._in_place()

    def held_by(self, tensors: int) -> bool:
        """True if that many tensors lead to the memory, and nothing else but this object does."""
        return bool(self._count(self.number) == self._holders[0] + tensors)

    @property
    def state(self) -> int:
        """The receiver's last message."""
        return self._byte(_STATE).value

    @state.setter
    def state(self, state: int) -> None:
        self._byte(_STATE).value = state

    @property
    def retired(self) -> bool:
        """True if the worker has given it up, so that the receiver need not keep it."""
        return bool(self._byte(_RETIRED).value)

    def retire(self) -> None:
        """Tell the receiver that the worker has given it up."""
        self._byte(_RETIRED).value = 1

    def _byte(self, offset: int) -> ctypes.c_uint8:
        if not self._in_place():
            return ctypes.c_uint8()
        return ctypes.c_uint8.from_address(self._address + self.room + offset)

    def _in_place(self) -> bool:
        """Torch moves what was shared by one strategy and is sent by the other."""
        return bool(self.storage.data_ptr() == self._address)


def holders_when_alone() -> Holders:
    """The result of `Segment.holders` if nobody else holds it; versions of torch count in different
    ways. RuntimeError where one cannot tell."""
    storage = torch.UntypedStorage(2 * TRAILER)  # type: ignore[no-untyped-call]
    segment = Segment(storage, (0, 0))
    del storage
    tensor = torch.empty(0, dtype=torch.uint8).set_(segment.storage)
    with_tensor = segment.holders()
    del tensor
    segment._holders = segment.holders()
    storage = segment.storage
    with_storage = segment.holders()
    del storage
    told_apart = segment._holders not in (with_tensor, with_storage) and segment.alone()
    if not told_apart or with_tensor[0] != segment._holders[0] + 1:
        raise RuntimeError("this torch does not say who holds a storage")
    return segment._holders


def _file(storage: torch.UntypedStorage) -> tuple[int, int]:
    status = os.fstat(storage._share_fd_cpu_()[0])
    return status.st_ino, status.st_dev


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
