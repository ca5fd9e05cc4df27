"""The rows that are steps of a process, and the samples of each step.

The clock is the optimizer that steps most often (ties: the one that stepped first). Rows of a
slower one, such as a GAN's generator, fall inside its steps. A process without optimizer steps is
clocked by its backward passes, one without those by the forward passes of its root module.
Also the length of a whole training, where the script has an argument of epochs.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass

from gpurun.measure.run_events import ProcessLog
from gpurun.measure.step_table import UNKNOWN, StepTable, merge_into
from gpurun.records.events import CLOCKS, ArgumentsEvent, LoaderEvent, StepRow

MOST_CALLS = 2.5
"""With more calls of the model a batch than this (diffusion, generation), a step of inference has
no batch of its own: the rows of the model's input are the samples."""
SHARED_ROWS = 0.1
"""Two loaders that share more of their rows than this feed the same steps, not other epochs'."""


@dataclass(frozen=True)
class RecordedClock:
    """The steps of a process. `kind` is "optimizer", "backward" or "forward".

    `training_loaders`: the numbers of the loaders that feed the steps. `loaders`: those whose
    data-set indices are the samples, the busiest first; none if samples are counted at the root
    module's input. `samples` and `batches` have one entry a step (`UNKNOWN`: not seen).
    """

    kind: str
    steps: StepTable
    training_loaders: tuple[int, ...]
    loaders: tuple[int, ...]
    samples: array[int]
    batches: array[int]


def step_clock(log: ProcessLog) -> RecordedClock | None:
    """The clock of a process; None if it took no step."""
    kind = next((k for k in CLOCKS if len(log.steps.get(k, ()))), None)
    if kind is None:
        return None
    table = log.steps[kind]
    counts = Counter(table[StepRow.SOURCE])
    if len(counts) > 1:
        # Counter keeps the order of first sight and max the first of equals
        table = merge_into(table, max(counts, key=lambda source: counts[source]))
    inferring = kind == "forward"
    training = _read_loaders(table) if inferring else _training_loaders(log, table)
    loaders = _sample_loaders(table, training)
    samples, batches = _per_step(table, loaders)
    if not inferring:
        samples, batches = _where_used(samples, batches, table[StepRow.MICROBATCHES])
    if not any(samples) or (inferring and _calls_a_batch(batches) > MOST_CALLS):
        loaders, samples = (), table[StepRow.INPUT_SAMPLES]
    return RecordedClock(kind, table, training, loaders, samples, batches)


def _calls_a_batch(batches: array[int]) -> float:
    """From the first batch on; 0 if there is none."""
    first = next((row for row, count in enumerate(batches) if count), len(batches))
    read = sum(count > 0 for count in batches)
    return (len(batches) - first) / read if read else 0.0


def _read_loaders(table: StepTable) -> tuple[int, ...]:
    """Numbers of the loaders that a script without training reads, that of most steps first."""
    steps = Counter(loader for _, loader, _, _ in table.yields)
    return tuple(sorted(steps, key=lambda n: (-steps[n], n)))


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


def training_loaders(log: ProcessLog, clock: RecordedClock) -> tuple[LoaderEvent, ...]:
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
    return samples, batches


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


def samples_per_second(log: ProcessLog, window_ns: tuple[int, int] | None) -> float | None:
    """Of the steps that ended in a window of the process's clock; None where none did.

    By the device's clock where that took longer: the host may run ahead of it.
    """
    clock = step_clock(log)
    if clock is None or window_ns is None:
        return None
    begin, end = window_ns
    ends = clock.steps[StepRow.END_NS]
    inside = slice(bisect_right(ends, begin), bisect_right(ends, end))
    samples, device = sum_known(clock.samples[inside]), clock.steps[StepRow.DEVICE_NS][inside]
    took_ns = max(end - begin, 0 if UNKNOWN in device else sum(device))
    return samples / (took_ns / 1e9) if samples else None


EPOCHS = ("epochs", "num_epochs", "n_epochs", "max_epochs", "nepochs", "num_train_epochs")
"""Names of arguments that hold the number of epochs."""


@dataclass(frozen=True)
class PlannedWork:
    """`epochs` passes over `samples_per_epoch` samples in `batches_per_epoch` batches; `source`:
    the argument that says so.
    """

    epochs: int
    samples_per_epoch: int
    source: str
    batches_per_epoch: int

    @property
    def samples(self) -> int:
        """Samples of the whole training."""
        return self.epochs * self.samples_per_epoch

    @property
    def batches(self) -> int:
        """Batches of the whole training."""
        return self.epochs * self.batches_per_epoch


def planned_work(log: ProcessLog, clock: RecordedClock, ranks: int) -> PlannedWork | None:
    """The work of a process that trains alone; None where the records do not show it."""
    epochs = _epochs(log.arguments)
    loader = next(iter(training_loaders(log, clock)), None)
    if epochs is None or loader is None or ranks != 1:
        return None
    if not loader.length or not loader.batch_size:
        return None
    samples = loader.length * loader.batch_size
    if loader.dataset_length:
        samples = min(samples, loader.dataset_length)
    count, source = epochs
    return PlannedWork(count, samples, source, loader.length)


def _epochs(events: Sequence[ArgumentsEvent]) -> tuple[int, str] | None:
    for event in events:
        for option in event.options:
            value = option.get("value")
            if option.get("dest") in EPOCHS and type(value) is int and value > 0:
                flags = option.get("flags") or [option["dest"]]
                return value, str(flags[-1])
    return None
