"""The script as it is, kept alive beside a search: candidates take turns with it.

Trials of a search are minutes apart, in which a shared machine drifts by more than most changes
gain. Their gains over the same live reference can be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpurun.records.failure import FailureKind
from gpurun.records.spec import StopRule
from gpurun.tuner.search.screening import SearchState
from gpurun.tuner.trial_series import TrialSeries
from gpurun.tuner.tuning_trial import Trial, TrialRequest

MOST_STEP_SECONDS = 0.05
"""Turns of slower steps take longer than a trial alone."""
NOT_BESIDE = frozenset(
    {
        FailureKind.OUT_OF_MEMORY,
        FailureKind.EXCEPTION,
        FailureKind.EXIT_CODE,
        FailureKind.KILLED,
        FailureKind.HUNG,
    }
)
"""Failures that the reference beside may have caused: memory, a port, a lock."""


class LiveReference:
    """Runs the trials of one search, beside the reference as long as that works.

    `launch` runs a trial. `note` hears why there is no reference.
    """

    def __init__(
        self,
        series: TrialSeries,
        launch: Callable[[TrialRequest], Trial],
        note: Callable[[str], None],
    ) -> None:
        self._series = series
        self._launch = launch
        self._note = note
        self._request: TrialRequest | None = None
        self._samples_a_step = 1.0
        self._worked = False

    def start(
        self, state: SearchState, rule: StopRule, limit_seconds: float, obstacle: str
    ) -> None:
        """Launch it, unless there is an obstacle; the best trial so far is the same: its gain is 1.

        Where there is no reference, that trial has no gain, and the note says why.
        """
        step = state.facts.result.step_time_ms
        if not obstacle and (step is None or step.mean > 1000 * MOST_STEP_SECONDS):
            obstacle = "its steps are slow"
        if obstacle:
            self._note(f"the search launches in turn: {obstacle}")
            return
        settings, best = state.settings, state.best
        self._request = TrialRequest("reference", settings, rule, limit_seconds=limit_seconds)
        self._samples_a_step = best.samples_a_step
        if self._started():
            state.best = replace(best, record=replace(best.record, gain_over_reference=1.0))

    def run(self, request: TrialRequest) -> Trial:
        """One trial, with its gain where it took turns with the reference.

        A trial that fails beside the reference is repeated alone before it is believed: always if
        it ran out of memory, else as long as no trial has worked beside it. A reference that came
        to its end is launched again.
        """
        if request.purpose != "screen" or not (self._series.has_reference or self._again()):
            return self._launch(request)
        trial = self._launch(replace(request, in_turns=True))
        if trial.failure is not None and self._doubtful(trial.failure.kind):
            self._note("this trial failed beside the script as it is, and is launched alone")
            self.end()
            return self._launch(request)
        self._worked = self._worked or trial.gain is not None
        return trial

    def end(self) -> None:
        """End it for good."""
        self._request = None
        self._series.end_reference()

    def _again(self) -> bool:
        worked, self._worked = self._worked, False
        return worked and self._started()

    def _started(self) -> bool:
        if self._request is None:
            return False
        why = self._series.start_reference(self._request, self._samples_a_step)
        if why:
            self._note(f"the search launches in turn: {why}")
        return not why

    def _doubtful(self, kind: FailureKind) -> bool:
        return kind is FailureKind.OUT_OF_MEMORY or (kind in NOT_BESIDE and not self._worked)
