"""The progress of `--optimize`: a table in place on a terminal, a line a stage elsewhere."""

from __future__ import annotations

import time
from typing import Any

from gpurun.formatting.knob_text import knobs_text
from gpurun.formatting.number_text import count, duration, number
from gpurun.formatting.one_line import one_line
from gpurun.records.tuning import TrialPurpose, TrialRecord, TuningReport
from gpurun.report.terminal_output import PREFIX, on_terminal, write_plain
from gpurun.report.trial_text import STAGES, Baseline, ended_well, outcome_text, trial_figures
from gpurun.tuner.tuning_view import TuningView


def tuning_view(quiet: bool, verbose: bool = False) -> TuningView:
    """The view that suits stderr: none when quiet, in place on a terminal, lines elsewhere."""
    if quiet:
        return TuningView()
    if verbose:
        return EventLines()
    if on_terminal():
        from gpurun.report.live_tuning_table import LiveView

        return LiveView()
    return StageLines()


class StageLines(TuningView):
    """One line a stage once it has ended; decisions stand in the record."""

    def __init__(self) -> None:
        self._baseline = Baseline()
        self._stage = ""
        self._begin = 0.0
        self._records: list[TrialRecord] = []
        self._look = ""

    def started(self, command: str, isolation: str, budget_seconds: float) -> None:
        """Write the command, its isolation and the budget."""
        _write(_start_line(command, isolation, budget_seconds))

    def trial_started(self, number: int, purpose: TrialPurpose, knobs: dict[str, Any]) -> None:
        """Write the line of the stage before, if this trial begins another."""
        stage = STAGES.get(purpose, self._stage)
        if stage != self._stage:
            self.close()
            self._stage, self._begin = stage, time.monotonic()

    def trial_finished(self, record: TrialRecord) -> None:
        """Keep the trial's figures for the line of its stage."""
        self._baseline.learn(record)
        self._records.append(record)

    def note(self, line: str) -> None:
        """Write the remark, after the line of the stage that it ends."""
        self.close()
        _write(one_line(line))

    def proof_update(self, look_text: str) -> None:
        """Keep the look for the line of the proof."""
        self._look = one_line(look_text)

    def finished(self, report: TuningReport) -> None:
        """Write how much work it was."""
        self.close()
        _write(_end_line(report))

    def close(self) -> None:
        """Write the line of the stage."""
        if self._records:
            _write(f"{self._stage}: {self._summary()}")
        self._stage, self._records, self._look = "", [], ""

    def _summary(self) -> str:
        records, look = self._records, self._look
        took = duration(time.monotonic() - self._begin)
        if len(records) == 1 and not look:
            parts = [*trial_figures(records[0]), f"took {took}"]
            outcome = outcome_text(records[0])
            return f"{', '.join(parts)}{': ' if outcome else ''}{outcome}"
        parts = [look] if look else []
        parts.append(f"{count(len(records), 'trial')} in {took}")
        rates = [(one.samples_per_second, one) for one in records if one.samples_per_second]
        if rates and not look:
            rate, fastest = max(rates, key=lambda one: one[0])
            knobs = knobs_text(fastest.knobs, self._baseline.knobs)
            parts.append(f"the fastest {number(rate)} samples/s: {knobs}")
        elif not any(map(ended_well, records)):
            parts.append(f"none was measured: {one_line(records[-1].reason)}")
        return ", ".join(parts)


class EventLines(TuningView):
    """One line an event (`--verbose`)."""

    def __init__(self) -> None:
        self._baseline = Baseline()

    def started(self, command: str, isolation: str, budget_seconds: float) -> None:
        """Write the command, its isolation and the budget."""
        _write(_start_line(command, isolation, budget_seconds))

    def trial_started(self, number: int, purpose: TrialPurpose, knobs: dict[str, Any]) -> None:
        """Write what is on trial."""
        _write(f"trial {number}, {purpose.value}: {knobs_text(knobs, self._baseline.knobs)} …")

    def trial_finished(self, record: TrialRecord) -> None:
        """Write the trial's figures or why there are none."""
        self._baseline.learn(record)
        parts = [f"trial {record.number}", *trial_figures(record)]
        parts.append(f"took {duration(record.seconds)}")
        outcome = outcome_text(record)
        _write(f"{', '.join(parts)}{': ' if outcome else ''}{outcome}")

    def note(self, line: str) -> None:
        """Write the remark."""
        _write(one_line(line))

    def decision(self, line: str) -> None:
        """Write the decision."""
        _write(one_line(line))

    def proof_update(self, look_text: str) -> None:
        """Write the look."""
        _write(f"proof: {one_line(look_text)}")

    def finished(self, report: TuningReport) -> None:
        """Write how much work it was."""
        _write(_end_line(report))


def _start_line(command: str, isolation: str, budget_seconds: float) -> str:
    apart = f", isolation: {isolation}" if isolation else ""
    return f"tuning {one_line(command)} (budget {duration(budget_seconds)}{apart})"


def _end_line(report: TuningReport) -> str:
    trials = count(len(report.trials), "trial")
    return f"tuning ended after {trials} in {duration(report.tuning_seconds)}"


def _write(text: str) -> None:
    write_plain([f"{PREFIX}{text}"])
