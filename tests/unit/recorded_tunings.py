"""Tunings recorded on an H200, their trials concluded again as the tuner does it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.arguments.main_flags import parse
from gpurun.arguments.options import Options
from gpurun.measure import resource_use
from gpurun.measure.run_events import decode_lenient
from gpurun.records.codec import from_json
from gpurun.records.spec import RunSpec
from gpurun.records.tuning import TrialRecord, TuningReport
from gpurun.trials.launch_request import LaunchRequest
from gpurun.trials.outcome import conclude
from gpurun.tuner.trial_series import trial_of
from gpurun.tuner.tuning_trial import Trial, TrialRequest
from tests.recordings import CORES, document


def report_of(recorded: Path) -> TuningReport:
    return from_json(TuningReport, document(recorded / "tuning.json"))


def concluded(recorded: Path, told: TuningReport) -> list[Trial]:
    """Every trial of an unpacked tuning."""
    options = parse(["--optimize", *told.command], {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resource_use, "available_cores", lambda: float(CORES))
        return [_concluded(options, recorded, record) for record in told.trials]


def _concluded(options: Options, recorded: Path, record: TrialRecord) -> Trial:
    run = recorded / record.run_dir
    spec = decode_lenient(RunSpec, document(run / "spec.json"))
    assert spec.trial is not None
    launch = LaunchRequest(
        name=record.purpose.value,
        run_dir=run,
        target=options.target,
        cwd=recorded,
        environment={},
        trial=spec.trial,
        settings=spec.settings,
    )
    settings = {s.knob: s.value for s in spec.settings}
    trial = spec.trial
    asked = TrialRequest(
        record.purpose, settings, trial.stop, trial.seed_offset, rounded=trial.rounded
    )
    outcome = conclude(launch, document(run / "result.json")["exit_code"], record.seconds, None)
    return trial_of(record.number, recorded, asked, outcome, options.aim)
