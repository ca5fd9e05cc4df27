"""The steps that count: those after warm-up, and what they took."""

from __future__ import annotations

import bisect
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

from gpurun.measure.run_events import ProcessLog
from gpurun.measure.step_table import UNKNOWN
from gpurun.measure.training_clock import RecordedClock, step_clock, sum_known
from gpurun.records.events import StepRow
from gpurun.records.result import StepSplit, StepTime
from gpurun.stats.descriptive import median, percentile_of_sorted

LOOK_AT = 4096
"""Steps looked at: warm-up that lasts longer is no warm-up."""
EARLY_STEPS = 10
"""Spikes count as warm-up among so many first steps."""
SPIKE = 1.5
"""A spike takes this many times the settled step."""
LEVEL_CHANGE = 0.03
"""A part that differs less from the rest than this is not worth leaving out."""
SMOOTHING = 2
"""Neighbours on each side in the running median."""


def warmup_steps(durations: Sequence[float], queue_batches: int = 0, known: int = 0) -> int:
    """The number of leading steps to leave out: at most half of the steps after the `known` ones.

    `durations`: of every step, the first included. `queue_batches`: batches that a loader with
    workers has read ahead; while it lasts, steps look faster than the loader can sustain. `known`:
    leading steps that are out anyway, such as the audited steps of a trial.
    """
    count = len(durations)
    if count < 2:
        return 0
    known = min(known, count)
    seen = durations[known : known + LOOK_AT]
    least = 2 if count >= 6 else 1  # the first step's duration is not known: it has no step before
    if queue_batches > 0:
        least = max(least, queue_batches + 2)
    found = max(_after_spikes(seen), _after_level_change(seen)) if len(seen) > 1 else 0
    return max(known, 1, min(max(least, known + found), known + (count - known) // 2))


def _after_spikes(durations: Sequence[float]) -> int:
    settled = median(durations[len(durations) // 2 :])
    early = min(EARLY_STEPS, len(durations) // 2)
    spikes = [i for i in range(early) if durations[i] > SPIKE * settled]
    return spikes[-1] + 1 if spikes else 0


def _after_level_change(durations: Sequence[float]) -> int:
    smooth = _running_median(durations)
    cut = _mser(smooth)
    if cut == 0:
        return 0
    before, after = median(smooth[:cut]), median(smooth[cut:])
    return cut if abs(before - after) > LEVEL_CHANGE * after else 0


def _running_median(values: Sequence[float]) -> list[float]:
    return [median(values[max(0, i - SMOOTHING) : i + SMOOTHING + 1]) for i in range(len(values))]


def _mser(values: Sequence[float]) -> int:
    """The cut in the first half after which variance over length of the rest is smallest."""
    center = median(values)  # keeps the sums of squares small
    total = squares = 0.0
    best, best_error = 0, float("inf")
    for start in range(len(values) - 1, -1, -1):
        offset = values[start] - center
        total += offset
        squares += offset * offset
        length = len(values) - start
        error = (squares - total * total / length) / length**2
        if start <= len(values) // 2 and error <= best_error:
            best, best_error = start, error
    return best


NS = 1e9
MS = 1e6
"""Nanoseconds in a second and in a millisecond."""
USUAL_AMONG = 20
"""The usual batch is taken from this many first steps, which every launch has. So launches of more
or fewer steps agree on it even if batches differ in size."""


@dataclass(frozen=True)
class Window:
    """Rows `first` to `last` - 1 of the clock are measured; the row before them opens the window.

    `durations_ns` has one entry a measured step. `device_time` tells that they are the device's.
    """

    log: ProcessLog
    clock: RecordedClock
    first: int
    last: int
    durations_ns: array[int]
    device_time: bool

    @property
    def measured_steps(self) -> int:
        """Steps in the window."""
        return self.last - self.first

    @property
    def seconds(self) -> float | None:
        """Wall time of the window; None if no step was measured."""
        return sum(self.durations_ns) / NS if self.measured_steps else None

    @property
    def bounds_ns(self) -> tuple[int, int]:
        """Wall-clock begin and end of the window."""
        ends = self.clock.steps[StepRow.END_NS]
        begin, end = ends[max(self.first - 1, 0)], ends[self.last - 1]
        return self.log.unix_time_ns(begin), self.log.unix_time_ns(end)

    @property
    def samples(self) -> int | None:
        """Samples of the measured steps; None if they cannot be counted."""
        return sum_known(self.clock.samples[self.first : self.last])

    @property
    def samples_per_second(self) -> float | None:
        """Samples of the measured steps over their wall time."""
        return _rate(self.samples, self.seconds)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens over wall time, None where no sequences are fed."""
        tokens = sum_known(self.clock.steps[StepRow.TOKENS][self.first : self.last])
        return _rate(tokens, self.seconds)

    @property
    def batch_size(self) -> float | None:
        """Samples of the usual batch of this process."""
        clock = self.clock
        counts = clock.batches if clock.loaders else clock.steps[StepRow.INPUT_CALLS]
        some = zip(clock.samples[:USUAL_AMONG], counts[:USUAL_AMONG], strict=True)
        sizes = [samples / max(batches, 1) for samples, batches in some if samples > 0]
        return median(sizes) if sizes else None

    def step_time(self) -> StepTime | None:
        """Distribution of the measured steps' durations."""
        if not self.measured_steps:
            return None
        ordered = sorted(self.durations_ns)
        p50, p95, p99 = (percentile_of_sorted(ordered, p) / MS for p in (50, 95, 99))
        return StepTime(mean=sum(ordered) / len(ordered) / MS, p50=p50, p95=p95, p99=p99)

    def split(self) -> StepSplit | None:
        """The parts of the mean step; `rest` is the time that no part accounts for."""
        if not self.measured_steps:
            return None
        copy = self._copy_ms()
        data, forward, backward, optimizer = (
            self._mean_ms(column)
            for column in (
                StepRow.DATA_NS,
                StepRow.FORWARD_NS,
                StepRow.BACKWARD_NS,
                StepRow.OPTIMIZER_NS,
            )
        )
        parts = sum(x for x in (data, copy, forward, backward, optimizer) if x is not None)
        rest = sum(self.durations_ns) / self.measured_steps / MS - parts
        # parts that overlap (a loader read by another thread) add up to more than the step
        return StepSplit(data, copy, forward, backward, optimizer, rest if rest >= 0 else None)

    def own_work_ms(self) -> tuple[float, ...]:
        """Milliseconds of a step outside backward pass and optimizer: the medians of both halves.

        Empty where too few steps tell. Steps that start or end a profiler do not move medians.
        """
        rows = slice(self.first, self.last)
        columns = (self.clock.steps[c][rows] for c in (StepRow.BACKWARD_NS, StepRow.OPTIMIZER_NS))
        steps = zip(self.durations_ns, *columns, strict=True)
        own = [step - b - o for step, b, o in steps if UNKNOWN not in (b, o)]
        middle = len(own) // 2
        return (median(own[:middle]) / MS, median(own[middle:]) / MS) if middle else ()

    def _copy_ms(self) -> float | None:
        """Mean over the steps that were looked at, wherever they lie; None if no copy was seen."""
        seen = [ns for ns in self.clock.steps[StepRow.COPY_NS] if ns != UNKNOWN]
        return sum(seen) / len(seen) / MS if any(seen) else None

    def _mean_ms(self, column: int) -> float | None:
        total = self.clock.steps.total(column, self.first, self.last)
        return None if total is None else total / self.measured_steps / MS


def measured_window(log: ProcessLog) -> Window | None:
    """The window of a process; None if it took no step."""
    clock = step_clock(log)
    if clock is None:
        return None
    ends = clock.steps[StepRow.END_NS]
    host = array("q", (b - a for a, b in pairwise(ends)))
    host.insert(0, ends[0] - log.process.clock_ns)
    known, last = (bisect.bisect_right(ends, bound) for bound in measured_span(log))
    queue = queue_in_steps(log, clock)
    first = min(warmup_steps(host[:last], queue, known), last) if last > 1 else last
    device = clock.steps[StepRow.DEVICE_NS][first:last]
    host = host[first:last]
    # the host may run ahead of the device's queue and then looks faster than the training is
    device_time = len(device) > 0 and UNKNOWN not in device and sum(device) > sum(host)
    return Window(log, clock, first, last, device if device_time else host, device_time)


def measured_span(log: ProcessLog) -> tuple[int, int]:
    """The clock's readings between which steps may be measured, of a side in turns its first."""
    spans = unfrozen_spans(log)
    if len(spans) > 1 or log.stop is None:
        return spans[:2][-1]
    return log.stop.window_begin_ns or 0, log.stop.window_end_ns


def unfrozen_spans(log: ProcessLog) -> list[tuple[int, int]]:
    """The warm-up of a side of a live pair and each of its turns; all the time of other processes.

    What reaches beyond such a span may hold time in which the side was frozen. No figure has it.
    """
    begins = [0, *(turn.clock_ns for turn in log.turns if turn.phase == "begin")]
    ends = [turn.clock_ns for turn in log.turns if turn.phase == "end"]
    return list(zip_longest(begins, ends, fillvalue=sys.maxsize))[: len(begins)]


def queue_in_steps(log: ProcessLog, clock: RecordedClock) -> int:
    """The number of steps that the read-ahead of the training loader lasts."""
    if not clock.training_loaders:
        return 0
    number = clock.training_loaders[0]
    loader = next((x for x in log.loaders if x.loader == number), None)
    if loader is None or not loader.workers:
        return 0
    batches = sum(b for _, n, _, b in clock.steps.yields if n == number)
    per_step = max(batches / len(clock.steps), 1.0)
    return round(loader.workers * (loader.prefetch_factor or 2) / per_step)


def _rate(count: int | None, seconds: float | None) -> float | None:
    return None if count is None or not seconds else count / seconds
