"""Whole runs recorded on an H200, summed up again: every figure is the one that was told there."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.measure import resource_use
from gpurun.measure.run_events import read_run
from gpurun.records.codec import to_json
from gpurun.records.result import DeviceUse, RunResult
from tests.recordings import CORES, assert_close, document, summed_up_again, unpacked

RUNS = ("simplenet_as_written", "simplenet_tuned", "resnet50_compiled")
SAMPLED = RUNS[:2]
OF_SAMPLES = {
    "host", "devices", "gpu_utilization_percent", "gpu_utilization_source", "energy_joules",
    "joules_per_sample",
}  # fmt: skip
"""What is not known where the launcher's samples were not kept."""


@pytest.fixture(autouse=True)
def _cores_of_that_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_use, "available_cores", lambda: float(CORES))


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("recorded")
    return {name: unpacked(name, place) for name in RUNS}


def only_device(result: RunResult) -> DeviceUse:
    (device,) = result.devices
    return device


@pytest.mark.parametrize("name", SAMPLED)
def test_a_recorded_run_sums_up_to_what_was_told_on_the_gpu(
    folders: dict[str, Path], name: str
) -> None:
    figures, told = (
        to_json(summed_up_again(folders[name])),
        document(folders[name] / "result.json"),
    )
    assert told["samples_per_second"] > 0
    assert {"split", "step_time_ms", "energy_joules", "joules_per_sample"} <= told.keys()
    assert_close({field: figures[field] for field in told}, told)


def test_the_counters_of_the_gpu_are_read_by_the_device_that_trained(
    folders: dict[str, Path],
) -> None:
    for name in SAMPLED:
        device = only_device(summed_up_again(folders[name]))
        assert device.uuid.startswith("GPU-")
        assert device.gpu_utilization_source == "gpm_sm_activity"
        assert device.sm_activity_percent == device.gpu_utilization_percent
        assert None not in (device.tensor_activity_percent, device.dram_activity_percent)
        assert device.throttle_reasons == ()


def test_watts_seconds_and_joules_of_a_recorded_run_belong_together(
    folders: dict[str, Path],
) -> None:
    for name in SAMPLED:
        result = summed_up_again(folders[name])
        device = only_device(result)
        assert device.energy_joules is not None
        assert device.power_watts is not None
        assert result.joules_per_sample is not None
        assert result.samples_per_second is not None
        watts = device.energy_joules / device.window_seconds
        assert watts == pytest.approx(device.power_watts, rel=0.1)
        assert result.joules_per_sample * result.samples_per_second == pytest.approx(watts)


def test_another_devices_samples_are_not_taken_for_the_one_that_trained(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    run = folders["simplenet_tuned"]
    alone = only_device(summed_up_again(run))
    text = (run / "samples.jsonl").read_text()
    (events,) = run.glob("events-*.jsonl")
    for path in (events, run / "result.json"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    lines = [line for line in text.splitlines() if '"event": "device"' in line]
    other = [
        line.replace(alone.uuid, "GPU-another").replace('"cuda_index": 0', '"cuda_index": 1')
        for line in lines
    ]
    (tmp_path / "samples.jsonl").write_text(text + "\n".join(other) + "\n")
    assert only_device(summed_up_again(tmp_path)) == alone


def test_tuned_settings_use_the_gpu_and_its_energy_better(folders: dict[str, Path]) -> None:
    slow, fast = (summed_up_again(folders[name]) for name in SAMPLED)
    assert fast.samples_per_second is not None
    assert slow.samples_per_second is not None
    assert fast.joules_per_sample is not None
    assert slow.joules_per_sample is not None
    assert fast.gpu_utilization_percent is not None
    assert slow.gpu_utilization_percent is not None
    assert fast.samples_per_second > 4 * slow.samples_per_second
    assert fast.joules_per_sample < slow.joules_per_sample
    assert fast.gpu_utilization_percent > 2 * slow.gpu_utilization_percent


def test_compiling_is_left_out_of_the_steps_that_are_measured(folders: dict[str, Path]) -> None:
    run = folders["resnet50_compiled"]
    result, told = summed_up_again(run), document(run / "result.json")
    assert result.startup_seconds is not None
    assert result.step_time_ms is not None
    assert result.startup_seconds * 1000 > 500 * result.step_time_ms.mean
    assert result.step_time_ms.p99 < 2 * result.step_time_ms.p50
    figures = to_json(result)
    kept = told.keys() - OF_SAMPLES
    assert_close({field: figures[field] for field in kept}, {field: told[field] for field in kept})
    assert all(figures[field] in (None, [], ()) for field in OF_SAMPLES)


def test_a_recorded_run_is_read_without_a_note(folders: dict[str, Path]) -> None:
    for folder in folders.values():
        assert read_run(folder).notes == ()
