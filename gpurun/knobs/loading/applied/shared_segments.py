"""A segment of shared memory that carries, behind its data, whether it may be written to again.

A loader worker writes a batch into it and the script's process maps it. Its last 64 bytes are not
data. They hold a token by which the receiver recognises the segment, the identity of its file (so
that a copy of the bytes is not mistaken for it), and one byte for each side as a message.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys

import torch

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
