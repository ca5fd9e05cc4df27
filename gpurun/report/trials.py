"""A finished trial as text: its figures, how it compares with the baseline, how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpurun.records.tuning import TrialRecord
from gpurun.report.format import byte_size, factor, milliseconds, number, one_line

SHARED = "other processes were on the GPU"


class Baseline:
    """The first finished trial without a change: what the others are set against."""

    def __init__(self) -> None:
        self.knobs: Mapping[str, Any] = {}
        self._rate: float | None = None
        self._number: int | None = None

    def learn(self, record: TrialRecord) -> None:
        """Take the trial as the baseline if it is the first of its kind that was measured."""
        if self._rate is None and record.purpose == "probe" and record.samples_per_second:
            self.knobs = record.knobs
            self._rate = record.samples_per_second
            self._number = record.number

    def ratio(self, record: TrialRecord) -> str:
        """The trial's throughput over the baseline's, "" where one of them was not measured."""
        if self._rate is None or record.samples_per_second is None:
            return ""
        if record.number == self._number:
            return ""
        return factor(record.samples_per_second / self._rate)


def outcome_text(record: TrialRecord) -> str:
    """How a trial ended: its reason, else its status where that says more than "well"."""
    reason = one_line(record.reason)
    if ended_well(record):
        return reason or (SHARED if record.foreign_processes else "")
    return f"{record.status}: {reason}" if reason else record.status


def ended_well(record: TrialRecord) -> bool:
    """Whether the trial yielded figures."""
    return record.samples_per_second is not None


def trial_figures(record: TrialRecord, baseline: Baseline) -> list[str]:
    """The measured figures of a trial, as parts of a sentence."""
    parts = []
    if record.samples_per_second is not None:
        ratio = baseline.ratio(record)
        rate = f"{number(record.samples_per_second)} samples/s"
        parts.append(f"{rate} ({ratio})" if ratio else rate)
    if record.step_time_ms is not None:
        parts.append(f"step p50 {milliseconds(record.step_time_ms.p50)}")
    if record.peak_memory_bytes is not None:
        parts.append(f"memory {byte_size(record.peak_memory_bytes)}")
    return parts
