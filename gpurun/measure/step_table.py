"""Step rows by column, eight bytes a figure: a long run has millions of them."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from gpurun.records.events import StepRow

UNKNOWN = -1
"""Stands for null in a column of integers, none of which is ever negative."""

ADDABLE = (
    StepRow.DATA_NS,
    StepRow.FORWARD_NS,
    StepRow.BACKWARD_NS,
    StepRow.OPTIMIZER_NS,
    StepRow.MICROBATCHES,
    StepRow.DEVICE_NS,
    StepRow.COPY_NS,
)
"""Columns that add up when a row is merged into the step that it belongs to."""

FED = (StepRow.INPUT_SAMPLES, StepRow.TOKENS, StepRow.INPUT_CALLS)
"""Columns that add up by optimizer; those of the optimizer with most samples count, since several
may share a batch."""


class Yields:
    """The batches and samples of each loader in each row, one entry a loader and row."""

    def __init__(self) -> None:
        self.row, self.loader = array("q"), array("q")
        self.indices, self.batches = array("q"), array("q")

    def append(self, row: int, loader: int, indices: int, batches: int) -> None:
        """Loader `loader` handed out `indices` data-set indices in `batches` batches."""
        self.row.append(row)
        self.loader.append(loader)
        self.indices.append(indices)
        self.batches.append(batches)

    def __iter__(self) -> Iterator[tuple[int, int, int, int]]:
        """(row, loader, indices, batches) in the order of the rows."""
        return zip(self.row, self.loader, self.indices, self.batches, strict=True)


class StepTable:
    """The rows of one clock. Index a column by the numbers of `StepRow`."""

    def __init__(self) -> None:
        self.columns = {c: array("q") for c in (StepRow.SOURCE, StepRow.END_NS, *ADDABLE, *FED)}
        self.loss = array("d")
        """NaN where no loss was looked at, infinity where it was NaN or infinite."""
        self.yields = Yields()

    def __len__(self) -> int:
        return len(self.loss)

    def __getitem__(self, column: int) -> array[int]:
        return self.columns[column]

    def append(self, row: Sequence[Any]) -> None:
        """Add one row as it is in the event file; ValueError, with nothing added, if it is off."""
        try:
            if len(row) == StepRow.INPUT_CALLS:
                row = (*row, row[StepRow.MICROBATCHES])  # written before that column was there
            figures = {c: UNKNOWN if row[c] is None else int(row[c]) for c in self.columns}
            loss = _loss(row[StepRow.LOSS])
            seen = row[StepRow.SAMPLES] or {}
            samples = [(int(k), int(v[0]), int(v[1])) for k, v in seen.items()]
            array("q", (*figures.values(), *(n for sample in samples for n in sample)))
        except (TypeError, IndexError, KeyError, AttributeError, OverflowError) as error:
            raise ValueError(f"not a step row: {error}") from None
        number = len(self)
        for column, figure in figures.items():
            self.columns[column].append(figure)
        self.loss.append(loss)
        for sample in samples:
            self.yields.append(number, *sample)

    def total(self, column: int, first: int, last: int) -> int | None:
        """Sum of a column over rows `first` to `last` - 1; None if any of them was not measured."""
        values = self.columns[column][first:last]
        return None if UNKNOWN in values else sum(values)

    def last_loss(self) -> float | None:
        """The latest loss that was looked at, infinity if it was not finite; None if none was."""
        return next((x for x in reversed(self.loss) if not math.isnan(x)), None)


def merge_into(table: StepTable, source: int) -> StepTable:
    """One row for each row of optimizer `source`, which takes in the others' rows before it."""
    merged = StepTable()
    step_of_row = array("q")
    open_row: dict[int, int] = {}
    fed: dict[int, list[int]] = {}
    loss = math.nan
    for row in range(len(table)):
        step_of_row.append(len(merged))
        for column in ADDABLE:
            open_row[column] = _add(open_row.get(column, 0), table[column][row])
        optimizer = table[StepRow.SOURCE][row]
        sums = fed.get(optimizer, [0] * len(FED))
        fed[optimizer] = [_add(a, table[c][row]) for a, c in zip(sums, FED, strict=True)]
        if not math.isnan(table.loss[row]):
            loss = table.loss[row] + (0.0 if math.isnan(loss) else loss)
        if optimizer == source:
            merged[StepRow.SOURCE].append(source)
            merged[StepRow.END_NS].append(table[StepRow.END_NS][row])
            for column in ADDABLE:
                merged[column].append(open_row[column])
            for column, figure in zip(FED, max(fed.values()), strict=True):
                merged[column].append(figure)
            merged.loss.append(loss)
            open_row, fed, loss = {}, {}, math.nan
    for row, loader, indices, batches in table.yields:
        if step_of_row[row] < len(merged):
            merged.yields.append(step_of_row[row], loader, indices, batches)
    return merged


def _loss(value: Any) -> float:
    if value is None:
        return math.nan
    return float(value) if math.isfinite(value) else math.inf


def _add(left: int, right: int) -> int:
    return UNKNOWN if UNKNOWN in (left, right) else left + right
