"""The duration of an epoch: the passes over the training loaders, whoever reads them.

Also whether steps of the first epoch take another time than those of later ones. A data set that
keeps its samples loads them once, and so does the system with files. Figures of the first epoch
then say nothing of the training. A step is taken as its wait for data plus what it usually takes
beside, so that what starts in the first epoch (compilation, say) does not count.
"""

from __future__ import annotations

import bisect
from array import array
from dataclasses import dataclass
from itertools import pairwise, zip_longest

from gpurun.measure.measured_window import LOOK_AT, MS, NS, Window, unfrozen_spans
from gpurun.measure.optional_figures import mean
from gpurun.measure.step_table import UNKNOWN
from gpurun.records.events import StepRow
from gpurun.records.result import EpochPace
from gpurun.stats.descriptive import median

SETTLING_STEPS = 2
"""Steps at the beginning of an epoch that wait for workers to start, or follow an evaluation."""
LEAST_STEPS = 6
"""Epochs with fewer steps beside these tell nothing."""
OTHER_PACE = 1.5
"""Epochs whose steps take so many times as long differ by more than a busy neighbour makes them."""


def epoch_seconds(window: Window) -> float | None:
    """Mean duration of the whole passes over the training loaders; the first only if alone."""
    passes: list[tuple[int, int]] = []
    for number in window.clock.loaders or window.clock.training_loaders:
        steps = _steps_fed(window, number)
        events = [event for event in window.log.epochs if event.loader == number]
        for event, following in zip_longest(events, events[1:]):
            if event.phase != "begin":
                continue
            if following is not None and following.phase == "end":
                passes.append((event.clock_ns, following.clock_ns))
            else:
                until_ns = None if following is None else following.clock_ns
                passes += steps.epochs(event.clock_ns, until_ns)
    spans = unfrozen_spans(window.log)
    durations = [b - a for a, b in passes if any(begin <= a and b <= end for begin, end in spans)]
    average = mean(durations[1:] or durations)
    return None if average is None else average / NS


@dataclass(frozen=True)
class _StepsFed:
    """When the steps that a loader fed ended, and how many of its `length` batches each took."""

    ends_ns: array[int]
    batches: array[int]
    length: int | None

    def epochs(self, begin_ns: int, until_ns: int | None) -> list[tuple[int, int]]:
        """Begin and end of the epochs in a reading that did not come to the loader's end.

        Libraries read as many batches as a loader has and do not ask for one more; some read all
        epochs in one go.
        """
        if not self.length:
            return []
        first = bisect.bisect_right(self.ends_ns, begin_ns)
        last = len(self.ends_ns)
        if until_ns is not None:
            last = bisect.bisect_right(self.ends_ns, until_ns)
        passes, seen = [], 0
        for row in range(first, last):
            seen += self.batches[row]
            if seen >= self.length:
                passes.append((begin_ns, self.ends_ns[row]))
                begin_ns = self.ends_ns[row]
                seen -= self.length
        return passes


def _steps_fed(window: Window, number: int) -> _StepsFed:
    steps = window.clock.steps
    fed = [(row, count) for row, loader, _, count in steps.yields if loader == number]
    lengths = [event.length for event in window.log.loaders if event.loader == number]
    return _StepsFed(
        array("q", (steps[StepRow.END_NS][row] for row, _ in fed)),
        array("q", (count for _, count in fed)),
        lengths[0] if lengths else None,
    )


def epoch_pace(window: Window) -> EpochPace | None:
    """Both paces where they differ; None where they do not, or no later epoch was seen."""
    steps = window.clock.steps
    ends, waits = steps[StepRow.END_NS], steps[StepRow.DATA_NS]
    epochs = _rows_by_epoch(window)
    if len(epochs) < 2 or UNKNOWN in waits:
        return None
    last = min(len(ends), LOOK_AT)
    work = median([ends[n] - ends[n - 1] - waits[n] for n in range(1, last)])
    paces = [work + sum(waits[begin:end]) / (end - begin) for begin, end in epochs]
    first, later = paces[0], median(paces[1:])
    differ = max(first, later) >= OTHER_PACE * min(first, later) > 0
    return EpochPace(first / MS, later / MS) if differ else None


def _rows_by_epoch(window: Window) -> list[tuple[int, int]]:
    """First and last row (not included) of each epoch; none where the first is too short."""
    ends, clock = window.clock.steps[StepRow.END_NS], window.clock
    numbers = clock.loaders or clock.training_loaders
    opened = sorted(
        event.clock_ns
        for event in window.log.epochs
        if event.phase == "begin" and event.loader in numbers
    )
    rows = [bisect.bisect_right(ends, at) for at in opened]
    bounds = [(a + SETTLING_STEPS, b) for a, b in pairwise([*rows, len(ends)]) if b > a]
    long = [(a, b) for a, b in bounds if b - a >= LEAST_STEPS]
    return long if long[:1] == bounds[:1] else []
