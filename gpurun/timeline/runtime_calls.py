"""Calls of the CUDA runtime and driver by their plain names."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpurun.timeline.model import RuntimeCall, Sync

_SUFFIX = re.compile(r"(_v\d+|_ptsz|_ptds)+$")
_SYNCS = frozenset(
    {
        "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize", "cudaMemcpy",
        "cuCtxSynchronize", "cuStreamSynchronize", "cuEventSynchronize", "cudaThreadSynchronize",
    }
)  # fmt: skip


def plain_name(name: str) -> str:
    """The call's name without the version and the stream convention that recordings append."""
    return _SUFFIX.sub("", name)


def is_sync(name: str) -> bool:
    """True if the host waits in a call of this plain name until the device is done."""
    return name in _SYNCS


def syncs_among(calls: Iterable[RuntimeCall]) -> tuple[Sync, ...]:
    """The calls in which the host waited; no line is known."""
    return tuple(
        Sync(call.begin_ns, call.end_ns, call.correlation, call.name, None)
        for call in calls
        if is_sync(call.name)
    )
