"""The script as it is, measured once more: what stands for it, and what it rules out."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpurun.arguments.options import Options, Target, TargetKind
from gpurun.knobs.api import Effect
from gpurun.measure.run_events import ProcessLog
from gpurun.records.events import ProcessEvent
from gpurun.records.failure import FailureKind
from gpurun.records.tuning import TrialPurpose
from gpurun.same.launch_audit import LaunchAudit
from gpurun.tuner import tuning_run as tuning_module
from gpurun.tuner.search.search_state import SearchState
from gpurun.tuner.trial_length import PROBE
from gpurun.tuner.tuning_findings import TuningEnded
from gpurun.tuner.tuning_run import TuningRun
from gpurun.tuner.tuning_trial import Trial, TrialRequest
from gpurun.tuner.tuning_view import TuningView
from tests.unit.knob_facts import facts
from tests.unit.report_records import run_result
from tests.unit.tuner_runs import Rates, StandIn, steady


def with_baseline(
    monkeypatch: pytest.MonkeyPatch, rates: Rates, loss: float = 1.0
) -> tuple[TuningRun, SearchState]:
    """A tuning that has measured the script as it is, whose trials show this loss."""

    monkeypatch.setattr(tuning_module, "gather_facts", lambda *_: facts())
    monkeypatch.setattr(tuning_module, "steps_per_epoch", lambda log: None)
    stand_in = StandIn(rates)
    options = Options(Target(TargetKind.SCRIPT, "train.py"), optimize=True)
    series: Any = stand_in
    tuning = TuningRun(options, series, TuningView(), time.monotonic() + 1e6)
    process = ProcessEvent(1, None, None, None, ("train.py",), "3.12", 0, clock_ns=0)
    probe = replace(
        stand_in.run(TrialRequest(TrialPurpose.PROBE, {}, PROBE)),
        evidence=LaunchAudit(seed=0, losses=(loss,) * 3, microbatches=(1,) * 3),
        log=ProcessLog(Path("events.jsonl"), process),
    )
    return tuning, tuning._baseline(probe)


@pytest.mark.parametrize(
    ("kind", "steps", "launches"),
    [
        (FailureKind.OUT_OF_TIME, 4, 1),
        (FailureKind.OUT_OF_TIME, 0, 2),
        (FailureKind.HUNG, 4, 2),  # a lock that the first one left?
    ],
)
def test_a_slow_training_is_not_launched_again_without_the_first_ones_files(
    monkeypatch: pytest.MonkeyPatch, kind: FailureKind, steps: int, launches: int
) -> None:
    """Seen on a crowded host: 30 s more, and a line that its files made it fail."""
    late = 0

    def layered(stand_in: StandIn, request: TrialRequest) -> Trial:
        nonlocal late
        late += 1
        stand_in.layered = True
        found = once(stand_in, request)
        record = replace(found.record, status="timeout", failure=kind)
        return replace(found, record=record, result=run_result(steps=steps)) if late > 1 else found

    once = StandIn.run
    monkeypatch.setattr(StandIn, "run", layered)
    with pytest.raises(TuningEnded):
        with_baseline(monkeypatch, steady())
    assert late == 1 + launches


@pytest.mark.parametrize("loss", [math.inf, 1.0])
def test_no_numerics_change_is_tried_where_no_loss_can_be_compared(
    monkeypatch: pytest.MonkeyPatch, loss: float
) -> None:
    tuning, _ = with_baseline(monkeypatch, steady(), loss)
    assert (Effect.NUMERICS in tuning._allowed) == math.isfinite(loss)
