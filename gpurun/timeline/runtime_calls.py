"""Calls of CUDA or HIP: what each does to host and device, by its plain name."""

from __future__ import annotations

import enum
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from gpurun.timeline.columns import Indices, Mask, Times, numbers_of
from gpurun.timeline.model import CopyKind, RuntimeCall, Timeline

_SUFFIX = re.compile(r"(_v\d+|_ptsz|_ptds)+$")
_HIP = re.compile(r"^hip(Ext|Module)*(?=[A-Z])")
_SPELLED = {"cudaMemcpyWithStream": "cudaMemcpy", "cudaHostMalloc": "cudaHostAlloc"}
"""HIP's names that differ from those of CUDA by more than their beginning."""


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
LAUNCHES = (Role.LAUNCH, Role.GRAPH)
"""The roles of calls that start kernels."""
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
    name = as_cuda(name)
    return next((role for role, pattern in _PATTERNS if pattern.match(name)), Role.OTHER)


@lru_cache(maxsize=4096)
def as_cuda(name: str) -> str:
    """CUDA's name of a call of HIP, which does the same; any other name as it is."""
    found = _HIP.sub("cuda", name)
    return _SPELLED.get(found, found)


def plain_name(name: str) -> str:
    """The call's name without the version and the stream convention that recordings append."""
    return _SUFFIX.sub("", name)


def is_sync(name: str) -> bool:
    """True if the host waits in a call of this plain name until the device is done."""
    return role_of(name) in SYNCS or as_cuda(name) == "cudaMemcpy"


def launch_times(
    events: Sequence[Any], calls: Sequence[RuntimeCall], moment: str
) -> tuple[Times, Mask]:
    """When the call that launched each event began or ended, and whether one is known.

    `events`: kernels or copies. `moment`: "begin_ns" or "end_ns" of the call.
    """
    wanted = numbers_of(events, "correlation")
    places, known = launches_of(wanted, numbers_of(calls, "correlation"))
    return numbers_of(calls, moment)[places], known


def launches_of(wanted: Times, correlations: Times) -> tuple[Indices, Mask]:
    """Of each wanted correlation the place of the call that has it, and whether there is one."""
    order = np.argsort(correlations, kind="stable")
    ranked = correlations[order]
    at = np.searchsorted(ranked, wanted, side="right") - 1
    known: Mask = (at >= 0) & (ranked[at] == wanted) & (wanted != 0)
    return order[at], known


def host_waits(timeline: Timeline) -> Sequence[RuntimeCall] | None:
    """The calls in which the host waited for the device; None where no source records calls.

    A wait right after the call of a copy to the host begins with it: that is what `.item()` and
    `.cpu()` cost the host.
    """
    if timeline.runtime_calls is None:
        return None
    reads = {copy.correlation for copy in timeline.copies or () if copy.kind is CopyKind.D2H}
    found: list[RuntimeCall] = []
    last: dict[int, RuntimeCall] = {}
    for call in timeline.runtime_calls:
        if is_sync(call.name):
            before = last.get(call.thread)
            read = before is not None and before.correlation in reads
            found.append(replace(call, begin_ns=before.begin_ns) if before and read else call)
        last[call.thread] = call
    return found
