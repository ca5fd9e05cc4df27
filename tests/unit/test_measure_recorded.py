"""Trials recorded on an H200, summed up again: the figures are those that were reported there."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.measure import resource_use
from gpurun.measure.run_summary import summarise_run
from gpurun.records.codec import to_json
from gpurun.records.result import RunResult
from tests.conftest import REPOSITORY
from tests.recordings import CORES, assert_close, document, summed_up_again

RECORDED = REPOSITORY / "tests" / "data" / "h200_slow_vision"
TRIALS = ("as_written", "loader_workers_21")


@pytest.fixture(autouse=True)
def _cores_of_that_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_use, "available_cores", lambda: float(CORES))


def replayed(trial: str) -> RunResult:
    return summed_up_again(RECORDED / trial)


@pytest.mark.parametrize("trial", TRIALS)
def test_a_recorded_trial_sums_up_to_what_was_reported_on_the_gpu(trial: str) -> None:
    figures = to_json(replayed(trial))
    told = document(RECORDED / trial / "result.json")
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
    told = document(RECORDED / TRIALS[1] / "result.json")
    result = summarise_run(tmp_path, exit_code=0, wall_seconds=told["wall_seconds"])
    assert result.devices == ()
    assert result.samples_per_second == told["samples_per_second"]
