"""Trials recorded on an H200, summed up again: the figures are those that were reported there."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from gpurun.measure import use
from gpurun.measure.summary import summarise_run
from gpurun.records.codec import from_json, to_json
from gpurun.records.result import RunResult
from tests.conftest import REPOSITORY

RECORDED = REPOSITORY / "tests" / "data" / "h200_slow_vision"
TRIALS = ("as_written", "loader_workers_21")


@pytest.fixture(autouse=True)
def _cores_of_that_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(use, "available_cores", lambda: 16.0)


def reported(trial: str) -> RunResult:
    return from_json(RunResult, json.loads((RECORDED / trial / "result.json").read_text()))


def replayed(trial: str) -> RunResult:
    told = reported(trial)
    return summarise_run(
        RECORDED / trial,
        exit_code=told.exit_code,
        wall_seconds=told.wall_seconds,
        status=told.status,
        command=told.command,
    )


def assert_close(one: Any, other: Any, path: str = "") -> None:
    """Equal documents, numbers to nine digits; `one` may have fields that are newer."""
    if isinstance(one, dict):
        assert one.keys() >= other.keys(), path
        for key in other:
            assert_close(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), path
        for number, pair in enumerate(zip(one, other, strict=True)):
            assert_close(*pair, f"{path}[{number}]")
    elif isinstance(one, float) and isinstance(other, float):
        assert math.isclose(one, other, rel_tol=1e-9), path
    else:
        assert one == other, path


@pytest.mark.parametrize("trial", TRIALS)
def test_a_recorded_trial_sums_up_to_what_was_reported_on_the_gpu(trial: str) -> None:
    figures = to_json(replayed(trial))
    told = json.loads((RECORDED / trial / "result.json").read_text())
    assert_close({name: figures[name] for name in told}, told)
    assert figures["startup_seconds"] > 8, "which was not reported yet"


def test_the_gpus_own_counters_are_read_rather_than_its_utilisation() -> None:
    for result in map(replayed, TRIALS):
        (device,) = result.devices
        assert device.device == "NVIDIA H200"
        assert result.gpu_utilization_source == "gpm_sm_activity"
        assert device.power_watts is not None
        assert device.power_watts > 50
        assert result.gpu_utilization_percent is not None
        assert result.gpu_utilization_percent < 5, "a small model on a large GPU"


def test_workers_feed_the_gpu_that_waited() -> None:
    slow, fast = map(replayed, TRIALS)
    assert slow.samples_per_second is not None
    assert fast.samples_per_second is not None
    assert fast.samples_per_second > 5 * slow.samples_per_second
    assert slow.split is not None
    assert slow.split.data_wait_ms is not None
    assert slow.step_time_ms is not None
    assert slow.split.data_wait_ms > 0.8 * slow.step_time_ms.mean


def test_a_recording_that_lost_its_samples_still_has_its_steps(tmp_path: Path) -> None:
    (tmp_path / "events-2.jsonl").write_bytes(
        (RECORDED / TRIALS[1] / "events-2.jsonl").read_bytes()
    )
    told = reported(TRIALS[1])
    result = summarise_run(tmp_path, exit_code=0, wall_seconds=told.wall_seconds)
    assert result.devices == ()
    assert result.samples_per_second == told.samples_per_second
