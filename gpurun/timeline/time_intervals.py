"""Arithmetic on sets of time intervals, as sorted numpy arrays of nanoseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpurun.timeline.columns import Times, begins, ends


@dataclass(frozen=True)
class Intervals:
    """Disjoint intervals in rising order: `start[i]` ≤ `end[i]` < `start[i + 1]`, in ns."""

    start: Times
    end: Times

    @classmethod
    def union(cls, start: Times, end: Times) -> Intervals:
        """The times that at least one of these intervals covers; they may overlap, in any order."""
        order = np.argsort(start, kind="stable")
        start, latest = start[order], np.maximum.accumulate(end[order])
        opens = np.ones(len(start), dtype=bool)
        opens[1:] = start[1:] > latest[:-1]
        closes = np.append(opens[1:], True)[: len(start)]
        return cls(start[opens], latest[closes])

    def __len__(self) -> int:
        return len(self.start)

    @property
    def total_ns(self) -> int:
        """Length of all intervals together."""
        return int((self.end - self.start).sum())

    def covered_before(self, times: Times) -> Times:
        """For each time, how much of what lies before it these intervals cover."""
        if not len(self):
            return np.zeros(len(times), dtype=np.int64)
        lengths = self.end - self.start
        before = np.concatenate(([0], np.cumsum(lengths)))
        last = np.searchsorted(self.start, times, side="right") - 1
        known = np.maximum(last, 0)
        inside = np.clip(times - self.start[known], 0, lengths[known])
        return np.where(last < 0, 0, before[known] + inside)

    def covered(self, start: Times, end: Times) -> Times:
        """For each interval from `start` to `end`, how much of it these intervals cover."""
        return self.covered_before(end) - self.covered_before(start)

    def overlap_ns(self, other: Intervals) -> int:
        """Time that both cover."""
        return int(self.covered(other.start, other.end).sum())

    def gaps(self, begin: int, end: int) -> Intervals:
        """The times from `begin` to `end` that no interval covers."""
        inside = (self.end > begin) & (self.start < end)
        starts = np.concatenate(([begin], np.minimum(self.end[inside], end)))
        stops = np.concatenate((np.maximum(self.start[inside], begin), [end]))
        real = stops > starts
        return Intervals(starts[real], stops[real])

    def within(self, begin: int, end: int) -> Intervals:
        """The part of these intervals between two times."""
        start, stop = np.clip(self.start, begin, end), np.clip(self.end, begin, end)
        real = stop > start
        return Intervals(start[real], stop[real])


def intervals(events: Sequence[Any]) -> Intervals:
    """The times that at least one of the events covers."""
    return Intervals.union(begins(events), ends(events))
