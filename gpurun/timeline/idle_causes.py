"""Why the device had nothing to do: each of its pauses is shared out among the causes.

A pause counts as wait for data as far as the script was in its loader, and as an exchange as far as
ranks exchanged data on the host. While the host waits for the device it cannot launch ahead: so
much of the pauses after a wait as the wait lasted belongs to the synchronisation. Of what remains,
the next work was launched too late (`launch`, or `host` where the pause is long), or it was
launched before and did not run (`other`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpurun.records.profile_figures import IdleTime
from gpurun.timeline.columns import Mask, Times, begins
from gpurun.timeline.device_work import DeviceWork, host_exchanges
from gpurun.timeline.model import Phase, RuntimeCall, Timeline
from gpurun.timeline.runtime_calls import launch_times
from gpurun.timeline.time_intervals import Intervals, intervals

LAUNCH_NS = 100_000
"""A pause up to this long is the pace of launches. One operator of torch takes the host 5 to 50 µs;
a longer pause is time in which the host did something else."""


def idle_time(
    timeline: Timeline, work: DeviceWork, host_waits: Sequence[RuntimeCall] | None
) -> IdleTime:
    """The idle time of the device by cause. `host_waits`: for the device; None: not recorded."""
    pauses = work.busy.gaps(work.begin_ns, work.end_ns)
    length, loading = pauses.end - pauses.start, timeline.named(Phase.DATA.value)
    data = intervals(loading).covered(pauses.start, pauses.end) if loading else None
    rest = length if data is None else length - data
    exchange = intervals(host_exchanges(timeline)).covered(pauses.start, pauses.end)
    exchange = np.minimum(exchange, rest)
    rest = rest - exchange
    sync = None
    if host_waits is not None:
        sync = _sync_part(intervals(host_waits).within(work.begin_ns, work.end_ns), pauses, rest)
        rest = rest - sync
    late, short = _launched_late(timeline, work, pauses), length <= LAUNCH_NS

    def share(part: Times | None) -> float | None:
        return None if part is None else work.share(int(part.sum()))

    return IdleTime(
        total=work.share(pauses.total_ns),
        data=share(data),
        sync=share(sync),
        launch=None if late is None else share(rest[late & short]),
        host=None if late is None else share(rest[late & ~short]),
        other=None if late is None else share(rest[~late]),
        exchange=share(exchange),
    )


def _sync_part(waits: Intervals, pauses: Intervals, rest: Times) -> Times:
    """How much of each pause synchronisations answer for: all of them, as long as the host waited
    before.
    """
    waited = np.concatenate([[0], np.cumsum(waits.end - waits.start)])
    until = waited[np.searchsorted(waits.start, pauses.start, side="right")]
    paused = np.cumsum(rest)
    unanswered = np.maximum.accumulate(np.maximum(paused - until, 0))  # a later wait is too late
    answered: Times = np.diff(paused - unanswered, prepend=0)
    return answered


def _launched_late(timeline: Timeline, work: DeviceWork, pauses: Intervals) -> Mask | None:
    """For each pause whether the work that ends it was launched after the pause had begun."""
    if not timeline.runtime_calls:
        return None
    begun, launched = [], []
    for events in (work.kernels, work.copies):
        times, known = launch_times(events, timeline.runtime_calls, "begin_ns")
        begun.append(begins(events)[known])
        launched.append(times[known])
    starts, launches = np.concatenate(begun), np.concatenate(launched)
    if not len(starts):
        return None
    order = np.lexsort((launches, starts))
    next_one = np.searchsorted(starts[order], pauses.end, side="left")
    last = np.minimum(next_one, len(starts) - 1)
    late: Mask = launches[order][last] >= pauses.start
    return late | (next_one >= len(starts))
