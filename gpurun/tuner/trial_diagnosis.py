"""Diagnoses trials: what holds the script back, and which knob may remove the cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpurun.diagnoses.diagnosis_report import diagnose
from gpurun.diagnoses.run_evidence import evidence_of_run
from gpurun.diagnoses.thresholds import Thresholds
from gpurun.errors import GpurunError
from gpurun.knobs.api import Knob
from gpurun.records.finding import WARNING, Finding
from gpurun.records.tuning import TrialRecord
from gpurun.tuner.trial_series import TrialSeries


class TrialDiagnoses:
    """The findings of a tuning's trials."""

    def __init__(self, trials: TrialSeries, thresholds: Thresholds) -> None:
        self._trials, self._thresholds = trials, thresholds

    def of(self, record: TrialRecord) -> tuple[Finding, ...]:
        """The findings of one trial, the most severe first; none if it left no record."""
        folder = self._trials.folder_of(record)
        try:
            evidence = evidence_of_run(folder, self._thresholds)
        except GpurunError:
            return ()
        return diagnose(evidence)

    def under(self, settings: Mapping[str, Any]) -> tuple[Finding, ...]:
        """The findings of the last trial that was measured under these settings.

        Of one that took no turns, if there is one: its use of the processor says why it waits for
        data.
        """
        trials = self._trials.trials[::-1]
        ran = [t for t in trials if t.knobs == dict(settings) and t.samples_per_second]
        alone = [t for t in ran if not t.took_turns()]
        return self.of((alone or ran)[0]) if ran else ()


def serious(findings: Sequence[Finding]) -> list[Finding]:
    """Warnings and critical ones."""
    return [finding for finding in findings if finding.severity >= WARNING]


def answered_by(knob: Knob, findings: Sequence[Finding]) -> Finding | None:
    """The most severe finding whose cause the knob may remove."""
    return next((finding for finding in findings if finding.type in knob.answers), None)


def by_findings(knobs: Sequence[Knob], findings: Sequence[Finding]) -> list[Knob]:
    """Knobs that answer a finding first, else in their order."""
    return sorted(knobs, key=lambda knob: answered_by(knob, findings) is None)
