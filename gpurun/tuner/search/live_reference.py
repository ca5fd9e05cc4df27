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
from gpurun.tuner.search.screening import SearchState
from gpurun.tuner.trial_series import TrialSeries
from gpurun.tuner.tuning_trial import Trial, TrialRequest

MOST_STEP_SECONDS = 0.05
"""Turns of slower steps take longer than a trial alone."""
MOST_STEP_SECONDS_WITHOUT_GPU = 0.075
"""A machine without a GPU drifts by more than most changes gain: that is worth trials of twice the
length. With steps of 82 ms and loader workers they took three times as long."""
NOT_BESIDE = frozenset(
    {
        FailureKind.OUT_OF_MEMORY,
        FailureKind.EXCEPTION,
        FailureKind.EXIT_CODE,
        FailureKind.KILLED,
        FailureKind.SIGNAL,
        FailureKind.HUNG,
    }
)
"""Failures that the reference beside may have caused: memory, a port, a lock."""

ENDED = "this trial took no turns with the script as it is, and is compared by its throughput"


@dataclass
class LiveReference:
    """Runs the trials of one search, beside the reference as long as that works.

    `launch` runs a trial. `note` hears why there is no reference.
    """

    series: TrialSeries
    launch: Callable[[TrialRequest], Trial]
    note: Callable[[str], None]
    _request: TrialRequest | None = field(init=False, default=None)
    _samples_a_step: float = field(init=False, default=1.0)
    _worked: bool = field(init=False, default=False)
    _blameless: bool = field(init=False, default=False)
    """A trial failed alone as it had failed beside it."""

    def start(
        self, state: SearchState, rule: StopRule, limit_seconds: float, obstacle: str
    ) -> None:
        """Launch it, unless there is an obstacle; the best trial so far is the same: its gain is 1.

        Where there is no reference, that trial has no gain, and the note says why.
        """
        result = state.facts.result
        on_cpu = state.facts.device == "cpu"
        most = MOST_STEP_SECONDS_WITHOUT_GPU if on_cpu else MOST_STEP_SECONDS
        step = result.step_time_ms
        if not obstacle and (step is None or step.mean > 1000 * most):
            obstacle = "its steps are slow"
        if obstacle:
            self.note(f"the search launches one trial after the other: {obstacle}")
            return
        settings, best = state.settings, state.best
        self._request = TrialRequest(
            TrialPurpose.REFERENCE, settings, rule, limit_seconds=limit_seconds
        )
        self._samples_a_step = best.samples_a_step()
        if self._started():
            state.best = replace(best, record=replace(best.record, gain_over_reference=1.0))

    def run(self, request: TrialRequest) -> Trial:
        """One trial, with its gain where it took turns with the reference.

        A trial that fails beside the reference is repeated alone before it is believed: always if
        it ran out of memory, else as long as no trial has worked beside it. If it fails alone as
        well, the reference was not why. A reference that came to its end is launched again.
        """
        if request.purpose is not TrialPurpose.SCREEN or not (
            self.series.has_reference or self._again()
        ):
            return self.launch(request)
        trial = self.launch(replace(request, in_turns=True))
        if trial.failure is not None and self._doubtful(trial.failure.kind):
            self.note("this trial failed beside the script as it is, and is launched alone")
            again = self._request
            self.end()
            alone = self.launch(request)
            if alone.failure is not None and alone.failure.kind is trial.failure.kind:
                self._request, self._worked, self._blameless = again, True, True
            return alone
        if trial.gain is None and not self.series.has_reference:
            self.note(ENDED)
        self._worked = self._worked or trial.gain is not None
        return trial

    def end(self) -> None:
        """End it for good."""
        self._request = None
        self.series.end_reference()

    def _again(self) -> bool:
        worked, self._worked = self._worked, False
        return worked and self._started()

    def _started(self) -> bool:
        if self._request is None:
            return False
        why = self.series.start_reference(self._request, self._samples_a_step)
        if why:
            self.note(f"the search launches one trial after the other: {why}")
        return not why

    def _doubtful(self, kind: FailureKind) -> bool:
        believed = self._worked or self._blameless
        return kind is FailureKind.OUT_OF_MEMORY or (kind in NOT_BESIDE and not believed)
