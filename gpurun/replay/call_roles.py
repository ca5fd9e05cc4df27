"""What a call of CUDA does to the host and to the device, by its name."""

from __future__ import annotations

import enum
import re
from functools import lru_cache


class Role(enum.IntEnum):
    """`LAUNCH`, `GRAPH`, `COPY` start work on the device; the syncs and `ALLOCATE` wait for it."""

    OTHER = 0
    LAUNCH = 1
    GRAPH = 2
    COPY = 3
    SYNC_DEVICE = 4
    SYNC_STREAM = 5
    SYNC_EVENT = 6
    ALLOCATE = 7
    RECORD = 8
    STREAM_WAIT = 9


SYNCS = (Role.SYNC_DEVICE, Role.SYNC_STREAM, Role.SYNC_EVENT)
"""The roles of calls that exist to wait."""
_ROLES = (
    (Role.GRAPH, r"cu(da)?GraphLaunch"),
    (Role.LAUNCH, r"cu(da)?Launch|cu(da)?MemsetAsync|cudaMemset|cuMemset"),
    (Role.COPY, r"cu(da)?Memcpy"),
    (Role.SYNC_DEVICE, r"cuda(Device|Thread)Synchronize|cuCtxSynchronize"),
    (Role.SYNC_STREAM, r"cu(da)?StreamSynchronize"),
    (Role.SYNC_EVENT, r"cu(da)?EventSynchronize"),
    (Role.OTHER, r"cuda(Malloc|Free)Async|cuMem(Alloc|Free)Async"),
    (Role.ALLOCATE, r"cuda(Malloc|Free|HostAlloc|HostRegister)|cuMem(Alloc|Free|Create|Map|Unmap)"),
    (Role.RECORD, r"cu(da)?EventRecord"),
    (Role.STREAM_WAIT, r"cu(da)?StreamWaitEvent"),
)
_PATTERNS = tuple((role, re.compile(pattern)) for role, pattern in _ROLES)


@lru_cache(maxsize=4096)
def role_of(name: str) -> Role:
    """The role of the call of this plain name."""
    return next((role for role, pattern in _PATTERNS if pattern.match(name)), Role.OTHER)
