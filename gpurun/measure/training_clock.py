"""The rows that are steps of a process, and the samples of each step.

The clock is the optimizer that steps most often (ties: the one that stepped first). Rows of a
slower one, such as a GAN's generator, fall inside its steps. Optimizers that step before it began
or after it ended are trainings of their own, such as the folds of a cross-validation: their steps
count too. A process without optimizer steps is clocked by its backward passes, one without those
by the forward passes of its root module.
"""

from __future__ import annotations

from array import array
from bisect import bisect
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass

from gpurun.measure.run_events import ProcessLog
from gpurun.measure.step_table import UNKNOWN, StepTable, merge_into
from gpurun.records.events import LoaderEvent, StepRow

CLOCKS = ("optimizer", "backward", "forward")
"""Best first."""

SHARED_ROWS = 0.1
"""Two loaders that share more of their rows than this feed the same steps, not other epochs'."""


@dataclass(frozen=True)
class StepClock:
    """The steps of a process. `kind` is "optimizer", "backward" or "forward".

    `training_loaders`: the numbers of the loaders that feed training steps. `loaders`: those whose
    data-set indices are the samples, the busiest first; none if samples are counted at the root
    module's input. `samples` and `batches` have one entry a step (`UNKNOWN`: not seen).
    """

    kind: str
    steps: StepTable
    training_loaders: tuple[int, ...]
    loaders: tuple[int, ...]
    samples: array[int]
    batches: array[int]


def step_clock(log: ProcessLog) -> StepClock | None:
    """The clock of a process; None if it took no step."""
    kind = next((k for k in CLOCKS if len(log.steps.get(k, ()))), None)
    if kind is None:
        return None
    table = log.steps[kind]
    spans = Spans()
    spans.add(table[StepRow.SOURCE])
    if len(spans) > 1:
        table = merge_into(table, spans.clocks())
    training = () if kind == "forward" else _training_loaders(log, table)
    loaders = _sample_loaders(table, training)
    samples, batches = _per_step(table, loaders)
    if not any(samples):
        loaders, samples = (), table[StepRow.INPUT_SAMPLES]
    return StepClock(kind, table, training, loaders, samples, batches)


class Spans:
    """The first row, the last row and the number of rows of each source, as they come in."""

    def __init__(self) -> None:
        self._rows = 0
        self._spans: dict[int, tuple[int, int, int]] = {}

    def __len__(self) -> int:
        return len(self._spans)

    def add(self, sources: Iterable[int]) -> None:
        """Take in the sources of the next rows."""
        for source in sources:
            first, _, count = self._spans.get(source, (self._rows, 0, 0))
            self._spans[source] = (first, self._rows, count + 1)
            self._rows += 1

    def clocks(self) -> frozenset[int]:
        """The source of most rows, the first seen of equals, and those that never met it or each
        other. A single row is no training of its own: it may be half of a step with two optimizers.
        """
        busiest_first = sorted(self._spans, key=lambda source: -self._spans[source][2])
        chosen: list[int] = []
        taken: list[tuple[int, int]] = []
        """First and last rows of the chosen, in order."""
        for source in busiest_first:
            first, last, count = self._spans[source]
            if chosen and count == 1:
                break
            place = bisect(taken, (first, last))
            after_one = place == 0 or taken[place - 1][1] < first
            before_next = place == len(taken) or last < taken[place][0]
            if after_one and before_next:
                chosen.append(source)
                taken.insert(place, (first, last))
        return frozenset(chosen)

    def steps(self) -> int:
        """The number of rows that are steps."""
        return sum(self._spans[source][2] for source in self.clocks())


def _training_loaders(log: ProcessLog, table: StepTable) -> tuple[int, ...]:
    """Numbers of the loaders that feed training steps, the one with most batches first.

    A loader trains if a backward pass follows at least half of its yields with gradients enabled,
    before the next yield. Finished epochs show this, else the step rows.
    """
    yields, trained = _finished_epochs(log)
    row_yields: Counter[int] = Counter()
    row_trained: Counter[int] = Counter()
    for row, loader, _, batches in table.yields:
        row_yields[loader] += batches
        row_trained[loader] += min(batches, max(table[StepRow.MICROBATCHES][row], 1))
    for loader in row_yields:
        if not yields[loader]:
            yields[loader], trained[loader] = row_yields[loader], row_trained[loader]
    training = [n for n in yields if trained[n] and 2 * trained[n] >= yields[n]]
    return tuple(sorted(training, key=lambda n: (-max(trained[n], row_trained[n]), n)))


def _finished_epochs(log: ProcessLog) -> tuple[Counter[int], Counter[int]]:
    yields: Counter[int] = Counter()
    trained: Counter[int] = Counter()
    for epoch in log.epochs:
        if epoch.phase == "end":
            yields[epoch.loader] += epoch.batches or 0
            trained[epoch.loader] += epoch.training_batches or 0
    return yields, trained


def _sample_loaders(table: StepTable, training: tuple[int, ...]) -> tuple[int, ...]:
    """The busiest training loader, and those that take its place in other steps.

    A script may build a new loader each epoch. Two loaders that are read in one step (labelled and
    unlabelled data, say) must not be added up.
    """
    if len(training) == 1:
        return training
    rows: dict[int, set[int]] = {n: set() for n in training}
    for row, loader, indices, _ in table.yields:
        if loader in rows and indices:
            rows[loader].add(row)
    chosen: list[int] = []
    taken: set[int] = set()
    for loader in training:
        own = rows[loader]
        if own and len(own & taken) <= SHARED_ROWS * len(own):
            chosen.append(loader)
            taken |= own
    return tuple(chosen)


def training_loaders(log: ProcessLog, clock: StepClock) -> tuple[LoaderEvent, ...]:
    """The loaders that feed training steps, the one with most batches first."""
    by_number = {x.loader: x for x in log.loaders}
    return tuple(by_number[n] for n in clock.training_loaders if n in by_number)


def _per_step(table: StepTable, loaders: tuple[int, ...]) -> tuple[array[int], array[int]]:
    samples = array("q", bytes(8 * len(table)))
    batches = array("q", bytes(8 * len(table)))
    for row, loader, indices, count in table.yields:
        if loader in loaders:
            samples[row] += indices
            batches[row] += count
    return _where_used(samples, batches, table[StepRow.MICROBATCHES])


def _where_used(
    samples: array[int], batches: array[int], passes: array[int]
) -> tuple[array[int], array[int]]:
    """Batches count in the steps that use them, where the loop fetches the next batch early.

    accelerate and prefetchers do so. It shows in the backward passes: no step has more of them
    than batches wait, and at most one batch is left in the end. Else nothing is moved.
    """
    waiting: deque[list[int]] = deque()
    used, used_batches = array("q"), array("q")
    for fetched, count, needed in zip(samples, batches, passes, strict=True):
        waiting.append([fetched, count])
        taken, left = 0, needed
        while left and waiting:
            oldest = waiting[0]
            part = min(left, oldest[1])
            share = oldest[0] * part // oldest[1] if part else 0
            taken, left = taken + share, left - part
            oldest[0], oldest[1] = oldest[0] - share, oldest[1] - part
            if not oldest[1]:
                waiting.popleft()
        if left:
            return samples, batches
        used.append(taken)
        used_batches.append(needed)
    if sum(count for _, count in waiting) > 1:
        return samples, batches
    return used, used_batches


def sum_known(values: array[int]) -> int | None:
    """The sum of one entry a step; None if an entry was not seen or all are 0."""
    return None if UNKNOWN in values else sum(values) or None
