"""Finished trials for the tests of the tuner, without a launch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from gpurun.records.failure import Failure, FailureKind
from gpurun.records.result import KnobOutcome
from gpurun.records.tuning import TrialPurpose, TrialRecord
from gpurun.same.launch_audit import LaunchAudit
from gpurun.tuner.phases import Phases
from gpurun.tuner.training_judge import AuditLaunches, TrainingJudge
from gpurun.tuner.trial_length import PROBE
from gpurun.tuner.tuning_trial import Trial, TrialRequest
from tests.unit.knob_facts import result


def trial(
    rate: float | None,
    knobs: Mapping[str, Any] | None = None,
    *,
    status: str = "stopped",
    reason: str = "",
    seconds: float = 3.0,
    number: int = 1,
    outcomes: tuple[KnobOutcome, ...] | None = None,
) -> Trial:
    """A trial of `rate` samples/s (None: it failed) under `knobs`, which all applied."""
    knobs = dict(knobs or {})
    if outcomes is None:
        outcomes = tuple(KnobOutcome(name, "applied", "") for name in knobs)
    if rate is None and status == "stopped":
        status = "failed"
    record = TrialRecord(
        number=number, purpose=TrialPurpose.SCREEN, knobs=knobs, status=status,
        samples_per_second=rate, step_time_ms=None, peak_memory_bytes=None, final_loss=None,
        seconds=seconds, reason=reason, run_dir="trials/01",
    )  # fmt: skip
    measured = result(samples_per_second=rate, knobs=outcomes, status=status)
    losses = tuple(1.0 - 0.01 * n for n in range(20))
    shown = LaunchAudit(seed=0, losses=losses, microbatches=(1,) * 20)
    failure = None if rate is not None else Failure(FailureKind.EXIT_CODE, reason)
    return Trial(record, measured, None, shown, failure=failure)


def no_launch(request: TrialRequest) -> Trial:
    """For a judge that is not to ask for a trial which only rounds."""
    raise AssertionError(f"{request} was launched")


def judge_of(
    *baselines: LaunchAudit | None,
    launch: Callable[[TrialRequest], Trial] = no_launch,
    note: Callable[[str], None] = lambda _: None,
    base: Mapping[str, Any] | None = None,
    room: float = 9.0,
) -> TrainingJudge:
    """One that knows these trials of the script as it is, whose settings are `base`.

    `room`: so many launches fit into what is left of the budget.
    """
    phases = Phases(time.monotonic() + 100.0 * room, budget=1e-9)
    phases.usual = 100.0
    shown = [b for b in baselines if b is not None]
    return TrainingJudge(shown, AuditLaunches(launch, note, base or {}, PROBE, phases))
