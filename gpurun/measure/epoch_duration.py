"""The duration of an epoch: the passes over the training loaders, whoever reads them."""

from __future__ import annotations

import bisect
from array import array
from dataclasses import dataclass
from itertools import zip_longest

from gpurun.measure.measured_window import NS, Window, unfrozen_spans
from gpurun.measure.optional_figures import mean
from gpurun.records.events import StepRow


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
