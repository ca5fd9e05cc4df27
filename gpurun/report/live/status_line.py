"""One line below the script's output on a terminal, as apt has it: the rest scrolls above it.

The terminal's scroll region ends one row earlier. Each drawing is one write that saves the cursor
and restores it, so that the script's own output goes on where it was.
"""

from __future__ import annotations

import os
import select

from gpurun.formatting.number_text import byte_size, milliseconds, number
from gpurun.records.monitor import GpuState, MonitorReport, TrainingState

SAVE, RESTORE = "\x1b7", "\x1b8"
DOWN, UP = "\x1bD", "\x1b[1A"
"""Keep the column. On the last row the first scrolls the screen."""
CLEAR_LINE = "\x1b[2K"
STYLE, PLAIN = "\x1b[7m", "\x1b[0m"
LEAST_ROWS = 4


class StatusLine:
    """Owns the last row of a terminal until `close`. `file`: a descriptor of the terminal."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._rows = 0
        self._styled = not os.environ.get("NO_COLOR")

    def draw(self, text: str) -> None:
        """Show this text, cut to the width of the terminal, which may have changed."""
        columns, rows = os.get_terminal_size(self._file)
        if rows < LEAST_ROWS:
            self.close()
            return
        line = text[: columns - 1]
        shown = f"{STYLE}{line}{PLAIN}" if self._styled else line
        self._write(f"{self._reserve(rows)}{SAVE}{_row(rows)}{shown}{RESTORE}")

    def close(self) -> None:
        """Give the row back, empty."""
        if self._rows:
            self._write(f"{SAVE}{_row(self._rows)}\x1b[r{RESTORE}")
        self._rows = 0

    def _reserve(self, rows: int) -> str:
        """Make room below the output, unless there is: setting the region moves the cursor home."""
        before, self._rows = self._rows, rows
        if before == rows:
            return ""
        stale = f"{SAVE}{_row(before)}{RESTORE}" if before else ""
        return f"{stale}{DOWN}{UP}{SAVE}\x1b[1;{rows - 1}r{RESTORE}"

    def _write(self, text: str) -> None:
        if select.select([], [self._file], [], 0)[1]:  # a stopped terminal must not stop us
            os.write(self._file, text.encode(errors="replace"))


def _row(number: int) -> str:
    """Go to this row and empty it."""
    return f"\x1b[{number};1H{CLEAR_LINE}"


def status_text(report: MonitorReport) -> str:
    """The state of a run in one line; "" before the first step."""
    trained = [_training_text(training) for training in report.trainings if training.ranks]
    if not trained:
        return ""
    return "  ".join([*trained, *(_gpu_text(gpu) for gpu in report.gpus)])


def _training_text(training: TrainingState) -> str:
    """The first rank's step and loss; throughput is that of all ranks."""
    first = training.ranks[0]
    rates = [rank.samples_per_second for rank in training.ranks]
    parts = [f"gpurun: step {first.steps:,}"]
    if first.step_time_seconds is not None:
        parts.append(milliseconds(first.step_time_seconds * 1e3))
    if None not in rates:
        parts.append(f"{number(sum(rate or 0.0 for rate in rates))} samples/s")
    if first.loss is not None:
        parts.append(f"loss {number(first.loss)}")
    return "  ".join(parts)


def _gpu_text(gpu: GpuState) -> str:
    parts = [f"GPU {gpu.gpu_id}:"]
    if gpu.gpu_utilization_percent is not None:
        parts.append(f"{gpu.gpu_utilization_percent:.0f} %")
    if gpu.memory_used_bytes is not None and gpu.memory_total_bytes:
        parts.append(f"{byte_size(gpu.memory_used_bytes)} of {byte_size(gpu.memory_total_bytes)}")
    if gpu.power_watts is not None:
        parts.append(f"{gpu.power_watts:.0f} W")
    return " ".join(parts)
