"""Figures of a full run alone: losses that were not finite, throughput that drifts, a GPU that had
no room.

Throughput drifts by heat, a growing list, a filling disk, a neighbour.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpurun.formatting.number_text import byte_size, count, milliseconds, percent
from gpurun.measure.measured_window import MS, NS, Window, queue_in_steps
from gpurun.measure.run_events import ProcessLog
from gpurun.measure.step_table import UNKNOWN
from gpurun.records.events import OutOfMemoryEvent, StepRow
from gpurun.records.result import NonfiniteLoss, ThroughputDrift
from gpurun.records.spec import MEMORY_SNAPSHOT
from gpurun.stats.descriptive import MEDIAN_ERROR, median, median_deviation

WINDOWS = 12
LEAST_STEPS = 20 * WINDOWS
"""A shorter series tells nothing."""
LEAST_CHANGE = 0.05
"""A fraction of throughput below which a drift is not worth a word."""
SURE = 4.0
"""A drift is so many standard errors away from none."""


@dataclass(frozen=True)
class PaceDrift:
    """Typical step times at both ends. `change`: of throughput, a fraction, negative is slower."""

    first_quarter: float
    last_quarter: float

    @property
    def change(self) -> float:
        """Relative change of throughput from the first to the last quarter."""
        return self.first_quarter / self.last_quarter - 1


def pace_drift(durations: Sequence[float]) -> PaceDrift | None:
    """The drift of a series of step times; None if there is none to speak of, or too few steps."""
    length = len(durations) // WINDOWS
    if length * WINDOWS < LEAST_STEPS:
        return None
    windows = [median(durations[n * length : (n + 1) * length]) for n in range(WINDOWS)]
    if min(windows) <= 0:
        return None
    quarter = WINDOWS // 4
    drift = PaceDrift(median(windows[:quarter]), median(windows[-quarter:]))
    difference = abs(math.log(drift.first_quarter / drift.last_quarter))
    certain = difference > SURE * _standard_error(windows, quarter)
    return drift if certain and abs(drift.change) > LEAST_CHANGE else None


def _standard_error(windows: Sequence[float], quarter: int) -> float:
    """Of the logarithm of the ratio of two quarters' medians."""
    steps = [math.log(after / before) for before, after in pairwise(windows)]
    noise = median_deviation(steps) / math.sqrt(2)
    return MEDIAN_ERROR * noise * math.sqrt(2 / quarter)


LEAST_SECONDS = 60.0
"""Within less time, a busy neighbour looks like a drift."""
LEAVE_OUT_STEPS = 10
LEAVE_OUT_SHARE = 20
"""The beginning that never counts: so many steps, and one in so many of all."""
KEPT = ("parameters", "gradients", "optimizer state")
"""These parts are as large with any batch."""


def nonfinite_loss(logs: Iterable[ProcessLog]) -> NonfiniteLoss | None:
    """The first step of any rank with such a loss; counts are those of its process."""
    events = [log.nonfinite for log in logs if log.nonfinite is not None]
    if not events:
        return None
    first = min(events, key=lambda event: event.step)
    return NonfiniteLoss(
        step=first.step,
        loss=first.loss,
        last_finite_step=first.last_finite_step,
        steps=first.seen,
        skipped_steps=first.skipped,
        action=first.action,
        origin=first.origin,
    )


def nonfinite_note(seen: NonfiniteLoss) -> str:
    """One line about them."""
    note = f"the loss was {seen.loss} at step {seen.step}"
    if seen.steps > 1:
        note += f", and at {count(seen.steps - 1, 'later step')}"
    if seen.skipped_steps:
        left_out = count(seen.skipped_steps, "optimizer step")
        note += f"; {left_out} left out, which changes the training (--on-nonfinite skip)"
    return note if seen.origin is None else f"{note}; {seen.origin}"


def throughput_drift(window: Window) -> ThroughputDrift | None:
    """The drift of a process that ran to its end; None without one, and of trials.

    A slow beginning is warm-up. A fast one is not, so that a run that slows down early is seen.
    """
    if window.log.stop is not None or window.log.turns:
        return None
    start = max(
        LEAVE_OUT_STEPS, window.last // LEAVE_OUT_SHARE, queue_in_steps(window.log, window.clock)
    )
    slower = _drift(window, start)
    if slower is not None and slower.change < 0:
        return _record(slower)
    faster = _drift(window, max(start, window.first))
    return _record(faster) if faster is not None and faster.change > 0 else None


def drift_note(drift: ThroughputDrift) -> str:
    """One line about it."""
    verb = "fell" if drift.change < 0 else "rose"
    return (
        f"throughput {verb} by {percent(abs(drift.change))} within the run: a step took "
        f"{milliseconds(drift.first_quarter_ms)} in its first quarter, "
        f"{milliseconds(drift.last_quarter_ms)} in its last"
    )


def _drift(window: Window, start: int) -> PaceDrift | None:
    durations = _durations_ns(window, start)
    if sum(durations) < LEAST_SECONDS * NS or _other_batches(window, start):
        return None
    return pace_drift(durations)


def _other_batches(window: Window, start: int) -> bool:
    """True if steps have more or fewer samples or tokens at the end: their times do not compare."""
    for column in (window.clock.samples, window.clock.steps[StepRow.TOKENS]):
        sizes = column[start : window.last]
        quarter = len(sizes) // 4
        if quarter:
            first, last = median(sizes[:quarter]), median(sizes[-quarter:])
            if min(first, last) > 0 and abs(last / first - 1) > LEAST_CHANGE:
                return True
    return False


def _durations_ns(window: Window, start: int) -> Sequence[int]:
    """The device's where they are known: the host may run ahead in bursts."""
    device = window.clock.steps[StepRow.DEVICE_NS][start : window.last]
    if window.device_time and UNKNOWN not in device:
        return device
    ends = window.clock.steps[StepRow.END_NS][start : window.last]
    return array("q", (b - a for a, b in pairwise(ends)))


def _record(drift: PaceDrift) -> ThroughputDrift:
    return ThroughputDrift(drift.change, drift.first_quarter / MS, drift.last_quarter / MS)


def memory_notes(logs: Iterable[ProcessLog]) -> list[str]:
    """Three lines about the failed allocation that ended a process; none if none did."""
    for log in (log for log in reversed([*logs]) if log.out_of_memory is not None):
        event, batches = log.out_of_memory, {loader.batch_size for loader in log.loaders}
        assert event is not None
        held = ", ".join(f"{part} {byte_size(size)}" for part, size in event.part_bytes.items())
        largest = ", ".join(f"{what} {byte_size(size)}" for what, size in event.largest)
        return [
            f"out of memory{f' at {event.where}' if event.where else ''}: "
            f"{byte_size(event.asked_bytes)} asked for, {byte_size(event.free_bytes)} of "
            f"{byte_size(event.total_bytes)} free; {held}",
            what_fits(event, batches.pop() if len(batches) == 1 else None),
            f"largest: {largest} (all: *-{MEMORY_SNAPSHOT}, for pytorch.org/memory_viz)",
        ]
    return []


def what_fits(event: OutOfMemoryEvent, batch_size: int | None) -> str:
    """The largest part of the batch that can have fitted: some of what it needs had yet to come."""
    held = sum(event.part_bytes.values())
    kept = sum(event.part_bytes.get(part, 0) for part in KEPT)
    room = min(event.free_bytes, event.total_bytes - event.reserved_bytes)
    share = (room + event.reserved_bytes - kept) / (held - kept + event.asked_bytes)
    if room >= event.asked_bytes:
        limit = "torch.cuda.set_per_process_memory_fraction"
        return f"torch refused it although the GPU has room: see whether the script calls {limit}"
    if share >= 1:
        pieces = byte_size(event.reserved_bytes - held)
        text = f"torch holds {pieces} in free pieces that are too small for this allocation"
        cure = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True joins the pieces"
        return text if event.expandable else f"{text}: {cure}"
    known = "" if batch_size is None else f" ({int(batch_size * share)} of {batch_size})"
    cure = "gpurun --optimize looks for changes that save memory and train the same"
    return f"at most {percent(share)} of this batch would have fitted{known}; {cure}"
