"""The progress of `--optimize`: a table in place on a terminal, lines elsewhere."""

from __future__ import annotations

from typing import Any

from gpurun.formatting.knob_text import knobs_text
from gpurun.formatting.number_text import count, duration
from gpurun.formatting.one_line import one_line
from gpurun.records.tuning import TrialPurpose, TrialRecord, TuningReport
from gpurun.report.terminal_output import PREFIX, on_terminal, write_plain
from gpurun.report.trial_text import Baseline, outcome_text, trial_figures
from gpurun.tuner.tuning_view import TuningView


def tuning_view(quiet: bool) -> TuningView:
    """The view that suits stderr: none when quiet, in place on a terminal, lines elsewhere."""
    if quiet:
        return TuningView()
    if on_terminal():
        from gpurun.report.live_tuning_table import LiveView

        return LiveView()
    return PlainView()


class PlainView(TuningView):
    """One line an event, for logs."""

    def __init__(self) -> None:
        self._baseline = Baseline()

    def started(self, command: str, isolation: str, budget_seconds: float) -> None:
        """Write the command, its isolation and the budget."""
        apart = f", isolation: {isolation}" if isolation else ""
        _write(f"tuning {one_line(command)} (budget {duration(budget_seconds)}{apart})")

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
        """Write the decision."""
        _write(one_line(line))

    def proof_update(self, look_text: str) -> None:
        """Write the look."""
        _write(f"proof: {one_line(look_text)}")

    def finished(self, report: TuningReport) -> None:
        """Write how much work it was."""
        trials = count(len(report.trials), "trial")
        _write(f"tuning ended after {trials} in {duration(report.tuning_seconds)}")


def _write(text: str) -> None:
    write_plain([f"{PREFIX}{text}"])
