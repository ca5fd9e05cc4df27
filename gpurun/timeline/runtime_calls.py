"""Calls of the CUDA runtime and driver by their plain names."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gpurun.timeline.columns import numbers_of
from gpurun.timeline.model import RuntimeCall, Sync

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpurun.timeline.time_intervals import Times

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


def launch_times(
    events: Sequence[Any], calls: Sequence[RuntimeCall], moment: str
) -> tuple[Times, NDArray[np.bool_]]:
    """When the call that launched each event began or ended, and whether one is known.

    `events`: kernels or copies. `moment`: "begin_ns" or "end_ns" of the call.
    """
    correlations = numbers_of(calls, "correlation")
    order = np.argsort(correlations, kind="stable")
    ranked, wanted = correlations[order], numbers_of(events, "correlation")
    at = np.searchsorted(ranked, wanted, side="right") - 1
    known = (at >= 0) & (ranked[at] == wanted)
    return numbers_of(calls, moment)[order[at]], known


def syncs_among(
    calls: Iterable[RuntimeCall], reads: Container[int] = frozenset()
) -> tuple[Sync, ...]:
    """The calls in which the host waited; no line is known.

    `reads`: correlations of copies to the host. A wait right after the call of one begins with it:
    that is what `.item()` and `.cpu()` cost the host.
    """
    found: list[Sync] = []
    last: dict[int, RuntimeCall] = {}
    for call in calls:
        if is_sync(call.name):
            before = last.get(call.thread)
            read = before is not None and before.correlation in reads
            begin = before.begin_ns if before is not None and read else call.begin_ns
            found.append(Sync(begin, call.end_ns, call.correlation, call.name, None))
        last[call.thread] = call
    return tuple(found)
