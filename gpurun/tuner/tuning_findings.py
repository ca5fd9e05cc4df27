"""The findings of a tuning so far, the diagnoses of its trials, and what ends it early."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpurun.diagnoses.diagnosis_report import diagnose
from gpurun.diagnoses.run_evidence import evidence_of_run
from gpurun.diagnoses.thresholds import Thresholds
from gpurun.errors import GpurunError
from gpurun.formatting.number_text import count
from gpurun.knobs.api import Knob
from gpurun.records.facts import Facts
from gpurun.records.failure import FailureKind
from gpurun.records.finding import WARNING, Finding
from gpurun.records.result import ENDED_WELL
from gpurun.records.tuning import Ceilings, LadderRow, Rejection, TrialRecord
from gpurun.tuner.proof.finalist import Finalist
from gpurun.tuner.rungs import Rung
from gpurun.tuner.trial_length import needed_steps
from gpurun.tuner.trial_series import TrialSeries
from gpurun.tuner.tuning_trial import Trial


class TuningEnded(Exception):
    """The tuning cannot go on. `verdict` as in `TuningReport`; `why` in one line."""

    def __init__(self, verdict: str, why: str) -> None:
        super().__init__(why)
        self.verdict = verdict
        self.why = why


def unusable(trial: Trial) -> TuningEnded:
    """The end of a tuning whose script as it is gave this trial, which cannot be tuned by."""
    record, steps = trial.record, trial.result.steps if trial.result else 0
    seen, needed = count(steps, "step"), needed_steps(trial.result)
    kind = None if trial.failure is None else trial.failure.kind
    if trial.throughput is not None and trial.score is None:
        why = f"the {trial.objective.value} of a sample was not measured in it"
        return TuningEnded("not_measured", why)
    if kind in (FailureKind.RANKS_REFUSED, FailureKind.NO_INPUT):
        return TuningEnded("script_failed", record.reason)
    if record.status == "timeout":
        so_far = f"{seen if steps else 'no training step'} of the {needed} needed"
        why = f"{seen} seen" if steps >= needed else so_far
        why = f"{why} in {record.seconds:.0f} s: {record.reason}"
        return TuningEnded("inconclusive", f"{why}; a longer --budget gives it more time")
    if record.status in ENDED_WELL and steps:
        why = f"it ended after {seen}; {needed} are needed to measure it"
        return TuningEnded("too_few_steps", why)
    if record.status in ENDED_WELL:
        return TuningEnded("no_training", "no training step was seen in it")
    if kind is FailureKind.KILLED:
        why = f"a trial of the script as it is: {record.reason}; tune again"
    else:
        why = f"the script fails by itself ({record.status}): {record.reason}"
    return TuningEnded("script_failed", why)


@dataclass
class TuningFindings:
    """Everything that the report is made of; filled as the tuning goes."""

    probe: Trial | None = None
    base: dict[str, Any] = field(default_factory=dict)
    """Settings without which the script runs out of memory: what everything is compared with."""
    facts: Facts | None = None
    chosen: Finalist | None = None
    """The finalist whose proof the report shows: the winner, else what came closest."""
    larger: Finalist | None = None
    """Another batch size, judged; the chosen finalist if that has one."""
    seen: tuple[Finding, ...] = ()
    """Findings of the script as it is."""
    left: tuple[Finding, ...] = ()
    """Findings under the settings that were chosen."""
    rungs: list[Rung] = field(default_factory=list)
    """Of the chosen settings."""
    dropped: list[LadderRow] = field(default_factory=list)
    """The rows of changes that the search tried and did not keep."""
    left_out: dict[str, Any] = field(default_factory=dict)
    """Settings that the search kept and that are not among the chosen ones."""
    objections: dict[str, str] = field(default_factory=dict)
    """By knob, what speaks against a setting."""
    rejections: list[Rejection] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)
    untried: tuple[str, ...] = ()
    """Knobs that the end of the time kept from being tried."""
    proof_seconds: float | None = None
    """From the beginning until a gain was first significant."""
    ceilings: Ceilings | None = None
    second_epoch_budget: float | None = None
    """As in `TuningReport`."""
    verdict: str = "interrupted"
    reason: str = ""
    """Why nothing is proven, where it is not the end of the budget in the proof."""

    @property
    def baseline(self) -> Finalist | None:
        """The script as it is, in the pairs that the report shows."""
        shown = self.chosen or self.larger
        return None if shown is None else shown.against


# -- what holds a trial back, and which knob may remove the cause ----------------------------------


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
