"""The script as it is, kept alive beside a search: candidates take turns with it.

Trials of a search are minutes apart, in which a shared machine drifts by more than most changes
gain. Their gains over the same live reference can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from gpurun.records.failure import FailureKind
from gpurun.records.spec import StopRule
from gpurun.records.tuning import TrialPurpose
from gpurun.tuner.trial_series import TrialSeries
from gpurun.tuner.tuning_trial import Trial, TrialRequest

MOST_STEP_SECONDS = 0.5
"""Turns of slower steps take longer than a trial alone."""
BESIDE = (TrialPurpose.SCREEN, TrialPurpose.RUNG)
"""The purposes of trials that take turns with it."""
NOT_BESIDE = frozenset(
    FailureKind[name] for name in ("EXCEPTION", "EXIT_CODE", "KILLED", "SIGNAL", "HUNG")
)
"""Failures that the reference beside may have caused: a port, a lock."""
ENDED = "this trial took no turns with the script as it is, and is compared by its throughput"


@dataclass
class LiveReference:
    """Runs the trials of one search, beside the reference as long as that works.

    `launch` runs a trial. `note` hears why there is no reference.
    """

    series: TrialSeries
    launch: Callable[[TrialRequest], Trial]
    note: Callable[[str], None]
    trials: list[Trial] = field(default_factory=list)
    """Those that took turns with it, and all rungs."""
    _request: TrialRequest | None = field(init=False, default=None)
    _samples_a_step: float = field(init=False, default=1.0)
    _worked: bool = field(init=False, default=False)
    """A trial took turns with one, or failed alone as it had failed beside it."""
    _of_use: bool = field(init=False, default=False)
    """The same of the present one."""

    def start(self, as_it_is: Trial, rule: StopRule, limit_seconds: float, obstacle: str) -> bool:
        """Launch it with the settings of a trial, unless there is an obstacle; false where there is
        no reference, and the note says why."""
        step = None if as_it_is.result is None else as_it_is.result.step_time_ms
        if not obstacle and (step is None or step.mean > 1000 * MOST_STEP_SECONDS):
            obstacle = "its steps are slow"
        settings, self._worked, self._of_use = as_it_is.record.knobs, False, False
        self._samples_a_step = as_it_is.samples_a_step()
        if not obstacle:
            short = replace(rule, audit_steps=0)  # it is compared by its speed alone
            self._request = TrialRequest(
                TrialPurpose.REFERENCE, settings, short, limit_seconds=limit_seconds
            )
        return self._started(obstacle)

    def run(self, request: TrialRequest) -> Trial:
        """One trial, with its gain where it took turns with the reference.

        A trial that fails beside the reference is repeated alone before it is believed: always if
        it ran out of memory or could not take turns, else as long as no trial has worked beside it.
        If it fails alone as well, or could not take turns, a further reference is launched. So it
        is where one came to its end.
        """
        trial = self._run(request)
        if trial.gain is not None or request.purpose is TrialPurpose.RUNG:
            self.trials.append(trial)
        return trial

    def _run(self, request: TrialRequest) -> Trial:
        if request.purpose not in BESIDE or not (self.series.live.has_reference or self._again()):
            return self.launch(request)
        trial = self.launch(replace(request, in_turns=True))
        if trial.failure is not None and self._doubtful(trial.failure.kind):
            self.note("this trial failed beside the script as it is, and is launched alone")
            again = self._request
            self.end()
            alone = self.launch(request)
            same = alone.failure is not None and alone.failure.kind is trial.failure.kind
            self._worked |= same
            if same or trial.failure.kind is FailureKind.NOT_LIVE:
                self._request, self._of_use = again, True
            return alone
        if trial.gain is None and not self.series.live.has_reference:
            self.note(ENDED)
        if trial.gain is not None:
            self._worked = self._of_use = True
        return trial

    def end(self) -> None:
        """End it for good."""
        self._request = None
        self.series.live.end_reference()

    def _again(self) -> bool:
        """Launch it once more if it came to its end and was of use; true if it was."""
        of_use, self._of_use = self._of_use and self._request is not None, False
        return of_use and self._started()

    def _started(self, obstacle: str = "") -> bool:
        if self._request is not None and not obstacle:
            obstacle = self.series.start_reference(self._request, self._samples_a_step)
        if obstacle:
            self.note(f"one trial is launched after the other: {obstacle}")
        return not obstacle

    def _doubtful(self, kind: FailureKind) -> bool:
        """True if the reference may be why a trial failed beside it."""
        always = kind in (FailureKind.OUT_OF_MEMORY, FailureKind.NOT_LIVE)
        return always or (kind in NOT_BESIDE and not self._worked)
