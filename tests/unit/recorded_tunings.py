"""Tunings recorded on an H200, their trials concluded again as the laboratory does it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.arguments import parse
from gpurun.isolation.mode import Mode
from gpurun.measure import use
from gpurun.records.codec import from_json
from gpurun.records.spec import RunSpec
from gpurun.records.tuning import TrialRecord, TuningReport
from gpurun.tuner.laboratory import Laboratory
from gpurun.tuner.trial import Request, Trial
from tests.recordings import CORES, document


def report_of(recorded: Path) -> TuningReport:
    return from_json(TuningReport, document(recorded / "tuning.json"))


def concluded(recorded: Path, told: TuningReport) -> list[Trial]:
    """Every trial of an unpacked tuning."""
    options = parse(["--optimize", *told.command], {})
    laboratory = Laboratory(options, recorded, Mode.OVERLAY, {}, lambda steps, of: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(use, "available_cores", lambda: float(CORES))
        found = [_concluded(laboratory, recorded, record) for record in told.trials]
    laboratory.close()
    return found


def _concluded(laboratory: Laboratory, recorded: Path, record: TrialRecord) -> Trial:
    run = recorded / record.run_dir
    spec = from_json(RunSpec, document(run / "spec.json"))
    assert spec.trial is not None
    settings = {s.knob: s.value for s in spec.settings}
    trial = spec.trial
    asked = Request(record.purpose, settings, trial.stop, trial.seed_offset, rounded=trial.rounded)
    exit_code = document(run / "result.json")["exit_code"]
    return laboratory._conclude(record.number, run, asked, exit_code, record.seconds, None)
