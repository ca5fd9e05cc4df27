"""A finished trial as text: its figures and how it ended.

No ratio: trials of different minutes are no ground for one. The proof compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpurun.formatting.number_text import byte_size, milliseconds, number
from gpurun.formatting.one_line import one_line
from gpurun.records.tuning import WITHOUT_SPEED, TrialPurpose, TrialRecord

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


class Baseline:
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
