"""The order of the host's calls: one sequence a thread, and handovers between threads.

A thread whose pauses hold the bursts of another, and whose calls never overlap those of the other,
waits for it: the script's thread for autograd's in the backward pass, and the other way round.
Threads whose calls overlap work beside each other and do not wait.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpurun.replay.step_events import Calls

if TYPE_CHECKING:
    from gpurun.replay.step_events import Indices
    from gpurun.timeline.time_intervals import Times

NOBODY = -1
MOST_OVERLAP = 0.02
"""Threads overlap if so many of the switches between them do: of the recorded pairs of script and
autograd none did, and a thread that polls overlaps in most."""


@dataclass(frozen=True)
class HostSequences:
    """For each call the one before it in its thread, and the one of another thread that it awaits.

    `NOBODY` where there is none. `pause_ns`: from the end of the awaited call, else of the one
    before, to the begin of this one; it is the host's own work.
    """

    before: Indices
    awaited: Indices
    pause_ns: Times


def host_sequences(calls: Calls) -> HostSequences:
    """The sequences of all threads."""
    apart = _overlapping(calls)
    before = np.full(len(calls), NOBODY, dtype=np.intp)
    awaited = np.full(len(calls), NOBODY, dtype=np.intp)
    pauses = np.zeros(len(calls), dtype=np.int64)
    last: dict[int, tuple[int, int]] = {}
    rows = zip(calls.thread.tolist(), calls.begin.tolist(), calls.end.tolist(), strict=True)
    for number, (thread, begin, end) in enumerate(rows):
        own, own_end = last.get(thread, (NOBODY, -1))
        other, other_end = NOBODY, own_end
        for name, (call, its_end) in last.items():
            after = other_end < its_end <= begin
            if name != thread and after and (name, thread) not in apart:
                other, other_end = call, its_end
        before[number], awaited[number] = own, other
        pauses[number] = begin - other_end if other_end >= 0 else 0
        last[thread] = (number, max(end, own_end))
    return HostSequences(before, awaited, np.maximum(pauses, 0))


def _overlapping(calls: Calls) -> set[tuple[int, int]]:
    """The pairs of threads that work beside each other, in both orders."""
    switches: Counter[tuple[int, int]] = Counter()
    overlaps: Counter[tuple[int, int]] = Counter()
    running, until = NOBODY, -1
    rows = zip(calls.thread.tolist(), calls.begin.tolist(), calls.end.tolist(), strict=True)
    for thread, begin, end in rows:
        if thread != running:
            pair = (min(thread, running), max(thread, running))
            switches[pair] += 1
            overlaps[pair] += begin < until
        if end >= until or thread != running:
            running, until = thread, max(until, end)
    found = [pair for pair, count in switches.items() if overlaps[pair] > MOST_OVERLAP * count]
    return {pair for one, other in found for pair in ((one, other), (other, one))}
