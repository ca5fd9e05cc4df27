"""The progress of `--optimize`: a table that updates in place on a terminal, lines elsewhere."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpurun.formatting.knob_text import knobs_text
from gpurun.formatting.number_text import byte_size, clock, if_known, milliseconds, number
from gpurun.formatting.one_line import one_line
from gpurun.records.tuning import TrialPurpose, TrialRecord, TuningReport
from gpurun.report.terminal_output import gone_terminal_ignored, on_terminal, stderr_console
from gpurun.report.terminal_table import Column, Grid, rich_table
from gpurun.report.tuning_progress import (
    STAGES,
    BaselineKnobs,
    EventLines,
    StageLines,
    ended_well,
    outcome_text,
)
from gpurun.tuner.tuning_view import TuningView

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType
    from rich.live import Live

_REFRESH_PER_SECOND = 4
"""Slow enough that drawing takes no noticeable share of the cores that the trials are timed on."""

_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_NOTES_SHOWN = 3
_LINES_BESIDE_ROWS = 10
_LEAST_ROWS = 3
_INDENT = 2

_COLUMNS = (
    Column("#", right=True, width=2),
    Column("stage", dropped=2, width=6),
    Column("change", width=14),
    Column("samples/s", right=True, width=9),
    Column("step p50", right=True, dropped=3, width=8),
    Column("memory", right=True, dropped=1, width=8),
    Column("state", width=16),
)


def tuning_view(quiet: bool, verbose: bool = False) -> TuningView:
    """The view that suits stderr: none when quiet, in place on a terminal, lines elsewhere."""
    if quiet:
        return TuningView()
    if verbose:
        return EventLines()
    if on_terminal():
        return LiveView()
    return StageLines()


@dataclass(frozen=True)
class _Running:
    number: int
    purpose: TrialPurpose
    knobs: dict[str, Any]
    steps: int = 0
    needed: int = 0


class LiveView(TuningView):
    """Trials as they come, with a spinner and the time spent of the budget."""

    def __init__(self) -> None:
        self._console: Console = stderr_console()
        self._live: Live | None = None
        self._title = ""
        self._budget = 0.0
        self._begin = time.monotonic()
        self._baseline = BaselineKnobs()
        self._records: list[TrialRecord] = []
        self._running: _Running | None = None
        self._notes: list[str] = []
        self._proof = ""
        self._ended = False

    def started(self, command: str, isolation: str, budget_seconds: float) -> None:
        """Begin to draw."""
        from rich.live import Live

        self._title = one_line(command) + (f"  (isolation: {isolation})" if isolation else "")
        self._budget = budget_seconds
        self._begin = time.monotonic()
        # stdout is the script's own: rich must not stand in its way.
        self._live = Live(
            console=self._console,
            get_renderable=self._draw,
            refresh_per_second=_REFRESH_PER_SECOND,
            redirect_stdout=False,
        )
        self._live.start()

    def trial_started(self, number: int, purpose: TrialPurpose, knobs: dict[str, Any]) -> None:
        """Show a row for the running trial."""
        self._running = _Running(number, purpose, knobs)

    def trial_progress(self, steps: int, needed: int) -> None:
        """Show how far the running trial is."""
        now = self._running
        if now is not None:
            self._running = _Running(now.number, now.purpose, now.knobs, steps, needed)

    def trial_finished(self, record: TrialRecord) -> None:
        """Show the trial's figures or why there are none."""
        self._running = None
        self._baseline.learn(record)
        self._records.append(record)

    def note(self, line: str) -> None:
        """Show the remark below the table (the last few lines stay)."""
        self._notes.append(one_line(line))

    def decision(self, line: str) -> None:
        """Show the decision in the same place."""
        self.note(line)

    def proof_update(self, look_text: str) -> None:
        """Show the state of the paired test below the table."""
        self._proof = one_line(look_text)

    def finished(self, report: TuningReport) -> None:
        """Draw the table for the last time, without a spinner, and leave it standing."""
        self.close()

    def close(self) -> None:
        """Stop drawing and give the terminal back."""
        live, self._live = self._live, None
        self._running = None
        self._ended = True
        if live is not None:
            with gone_terminal_ignored():
                live.stop()

    def _draw(self) -> Group:
        from rich.console import Group
        from rich.text import Text

        lines: list[RenderableType] = [self._heading(), Text(""), self._table()]
        lines += [Text(f"  {note}", style="dim") for note in self._notes[-_NOTES_SHOWN:]]
        if self._proof:
            lines.append(Text.assemble(("  proof: ", "bold"), self._proof))
        return Group(*lines)

    def _heading(self) -> RenderableType:
        from rich.text import Text

        spent = time.monotonic() - self._begin
        times = f"{clock(spent)} of {clock(self._budget)}"
        mark = "" if self._ended else f"{self._frame()} "
        return Text.assemble(
            ("gpurun --optimize ", "bold cyan"), (self._title, "bold"), ("  ", ""), f"{mark}{times}"
        )

    def _frame(self) -> str:
        return _FRAMES[int((time.monotonic() - self._begin) * 10) % len(_FRAMES)]

    def _table(self) -> RenderableType:
        from rich.padding import Padding

        kept = Grid(_COLUMNS, ()).fitting(self._console.width - _INDENT).columns
        rows, styles = [], []
        for record in self._visible():
            rows.append(self._row(record))
            styles.append("" if ended_well(record) else "yellow")
        if self._running is not None:
            rows.append(self._running_row(self._running))
            styles.append("bold")
        keep = [column in kept for column in _COLUMNS]
        grid = Grid(_COLUMNS, tuple(rows), tuple(styles)).select(keep)
        return Padding(rich_table(grid), (0, 0, 0, _INDENT), expand=False)

    def _visible(self) -> list[TrialRecord]:
        """The baseline and the latest trials, as many as the terminal has lines for."""
        room = max(_LEAST_ROWS, self._console.height - _LINES_BESIDE_ROWS)
        if len(self._records) <= room or self._ended:
            return self._records
        return [self._records[0], *self._records[len(self._records) - room + 1 :]]

    def _row(self, record: TrialRecord) -> tuple[str, ...]:
        times, memory = record.step_time_ms, record.peak_memory_bytes
        rate = record.samples_per_second
        return (
            str(record.number),
            _stage(record.purpose),
            knobs_text(record.knobs, self._baseline.knobs),
            if_known(number, rate),
            milliseconds(times.p50) if times is not None else "",
            if_known(byte_size, memory),
            one_line(outcome_text(record) or "done"),
        )

    def _running_row(self, running: _Running) -> tuple[str, ...]:
        progress = f"{running.steps} of {running.needed} steps" if running.needed else "starting"
        return (
            str(running.number),
            _stage(running.purpose),
            knobs_text(running.knobs, self._baseline.knobs),
            *("", "", ""),
            f"{self._frame()} {progress}",
        )


def _stage(purpose: TrialPurpose) -> str:
    """The stage; the change already separates pairs of baseline and candidate."""
    return STAGES.get(purpose, purpose.value)
