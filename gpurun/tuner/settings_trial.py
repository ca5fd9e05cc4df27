"""One launch with a part of the stored settings, and whether it went wrong."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpurun.records.blame_report import BlameLaunch, LaunchState
from gpurun.records.failure import FailureKind
from gpurun.records.spec import StopRule
from gpurun.records.tuning import TrialPurpose
from gpurun.stats.loss_curve_points import curve_of
from gpurun.tuner.trial_series import TrialSeries
from gpurun.tuner.tuning_trial import Trial, TrialRequest

CANNOT_TELL = 125
"""The exit code of a check that skips a launch, as for `git bisect run`."""
TRIAL_VARIABLE = "GPURUN_TRIAL"
"""Tells a check the folder of the launch: `output.log`, `result.json`, the events."""


@dataclass(frozen=True)
class SettingsTest:
    """Launches for so many `steps` and judges: by `check`, a shell command, or by itself."""

    series: TrialSeries
    steps: int
    check: str | None

    def launch(self, settings: Mapping[str, Any], *, first: bool = False) -> BlameLaunch:
        """Launch with these settings; the `first` may download what the others find in place."""
        rule = StopRule(self.steps, 0.0, self.steps, warmup_steps=0, audit_steps=0)
        trial = self.series.run(TrialRequest(TrialPurpose.BLAME, settings, rule, hold=first))
        folder = self.series.folder_of(trial.record)
        state, reason = _judged(trial) if self.check is None else _checked(self.check, folder)
        return BlameLaunch(
            settings=dict(settings),
            state=state,
            reason=reason,
            seconds=trial.record.seconds,
            run_dir=trial.record.run_dir,
        )


def _judged(trial: Trial) -> tuple[LaunchState, str]:
    """A failed launch or a loss that is not finite is bad."""
    failure = trial.failure
    if failure is not None and failure.kind is FailureKind.KNOB_FAILED:
        return LaunchState.SKIPPED, failure.text
    if failure is not None and failure.kind is not FailureKind.TOO_FEW_STEPS:
        return LaunchState.BAD, failure.text
    for table in () if trial.log is None else trial.log.steps.values():
        curve = curve_of(table.loss)
        if curve is not None and curve.nonfinite_step is not None:
            return LaunchState.BAD, f"the loss is not finite at step {curve.nonfinite_step}"
    return LaunchState.GOOD, ""


def _checked(command: str, folder: Path) -> tuple[LaunchState, str]:
    environment = {**os.environ, TRIAL_VARIABLE: str(folder.resolve())}
    code = subprocess.run(
        command, shell=True, env=environment, stdin=subprocess.DEVNULL, stdout=2, check=False
    ).returncode
    if code == 0:
        return LaunchState.GOOD, ""
    state = LaunchState.SKIPPED if code == CANNOT_TELL else LaunchState.BAD
    return state, f"the check ended with {code}"
