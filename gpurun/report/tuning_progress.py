"""The progress of `--optimize` in lines: a line a stage, or with `--verbose` a line an event."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from gpurun.formatting.knob_text import knobs_text
from gpurun.formatting.number_text import byte_size, count, duration, milliseconds, number
from gpurun.formatting.one_line import one_line
from gpurun.records.tuning import WITHOUT_SPEED, TrialPurpose, TrialRecord, TuningReport
from gpurun.report.terminal_output import PREFIX, write_plain
from gpurun.tuner.tuning_view import TuningView

SHARED = "other processes were on the GPU"
STAGES = {
    TrialPurpose.PROBE: "script as it is",
    TrialPurpose.SCREEN: "search",
    TrialPurpose.WORKERS: "search",
    TrialPurpose.PAIR_BASELINE: "proof",
    TrialPurpose.PAIR_CANDIDATE: "proof",
    TrialPurpose.RUNG: "ladder",
    TrialPurpose.CEILINGS: "model and loader alone",
}
"""The stage that a trial belongs to; one for another purpose is part of the stage it falls in."""


class BaselineKnobs:
    """The first finished trial: its settings need not be named again."""

    def __init__(self) -> None:
        self.knobs: Mapping[str, Any] = {}
        self._known = False

    def learn(self, record: TrialRecord) -> None:
        """Take the trial as the baseline if it is the first of its kind that was measured."""
        if not self._known and record.purpose is TrialPurpose.PROBE and record.samples_per_second:
            self.knobs, self._known = record.knobs, True


def outcome_text(record: TrialRecord) -> str:
    """The end of a trial: its reason, else its status unless that is "well"."""
    reason = one_line(record.reason)
    if ended_well(record):
        return reason or (SHARED if record.foreign_processes else "")
    status = "not measured" if record.purpose in WITHOUT_SPEED else record.status
    return f"{status}: {reason}" if reason else status


def ended_well(record: TrialRecord) -> bool:
    """True if the trial yielded figures; some have no speed of their own."""
    other = record.purpose in WITHOUT_SPEED and record.status == "stopped"
    return other or record.samples_per_second is not None


def trial_figures(record: TrialRecord) -> list[str]:
    """The measured figures of a trial, as parts of a sentence."""
    parts = []
    if record.samples_per_second is not None:
        parts.append(f"{number(record.samples_per_second)} samples/s")
    if record.step_time_ms is not None:
        parts.append(f"step p50 {milliseconds(record.step_time_ms.p50)}")
    if record.peak_memory_bytes is not None:
        parts.append(f"memory {byte_size(record.peak_memory_bytes)}")
    return parts


class StageLines(TuningView):
    """One line a stage once it has ended; decisions stand in the record."""

    def __init__(self) -> None:
        self._baseline = BaselineKnobs()
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
        self._baseline = BaselineKnobs()

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
