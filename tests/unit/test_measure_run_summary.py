"""A run folder's result: what was measured is right, and what was not is null, never 0."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from gpurun.measure import summarise_run
from gpurun.measure.compute_use import peak_flops_per_second
from gpurun.measure.machine import available_memory
from gpurun.records.codec import to_json
from gpurun.records.events import (
    FlopsEvent,
    HookEvent,
    KnobEvent,
    StopEvent,
    TorchEvent,
    TraitEvent,
    TurnEvent,
)
from gpurun.records.messages.traits import PARALLEL_REFUSED
from gpurun.records.result import RunResult
from gpurun.records.samples import DeviceSample, HostSample
from tests.unit.recorded_runs import (
    MS,
    START_NS,
    UNIX_NS,
    end,
    epoch,
    loader,
    root,
    row,
    steady,
    steps,
    write_events,
)


def summary(run_dir: Path, exit_code: int | None = 0, **more: Any) -> RunResult:
    return summarise_run(run_dir, exit_code=exit_code, wall_seconds=3.0, **more)


def device(at_ms: float, index: int | None = 0, **figures: Any) -> DeviceSample:
    plain: dict[str, Any] = {
        "utilization_percent": 90.0,
        "memory_used_bytes": 500,
        "memory_total_bytes": 1000,
        "power_watts": 300.0,
        "energy_joules": at_ms * 0.3,
        "temperature_celsius": 50.0,
        "sm_clock_mhz": 1900.0,
        "throttle_reasons": (),
        "foreign_processes": 0,
        "graphics_activity_percent": None,
        "sm_activity_percent": None,
        "tensor_activity_percent": None,
        "dram_activity_percent": None,
    }
    return DeviceSample(
        unix_time_ns=UNIX_NS + int(at_ms * MS),
        uuid=f"GPU-{index}",
        name="NVIDIA H200",
        cuda_index=index,
        **{**plain, **figures},
    )


def write_samples(run_dir: Path, samples: list[Any]) -> None:
    lines = [json.dumps({"event": s.kind, **to_json(s)}) + "\n" for s in samples]
    (run_dir / "samples.jsonl").write_text("".join(lines))


def test_the_start_is_split_where_torch_was_imported(tmp_path: Path) -> None:
    torch = TorchEvent("2.11.0", 16, None, clock_ns=START_NS + 700 * MS)
    write_events(tmp_path, [torch, loader(), steady(102)])
    result = summary(tmp_path)
    assert (result.seconds_to_torch, result.seconds_to_first_step) == pytest.approx((0.7, 1.0))
    write_events(tmp_path, [TorchEvent("2.11.0", 16, None), loader(), steady(102)])
    assert summary(tmp_path).seconds_to_torch is None, "a record from before it was kept"


def test_the_start_includes_what_the_first_steps_took_beyond_the_pace(tmp_path: Path) -> None:
    """The first step ends after 1,000 ms, the second takes 10 as all others do."""
    write_events(tmp_path, [loader(), steady(102)])
    result = summary(tmp_path)
    assert result.step_time_ms is not None
    assert result.step_time_ms.mean == pytest.approx(10.0)
    assert result.warmup_steps == 2
    assert result.startup_seconds == pytest.approx(0.99)


def test_throughput_is_samples_over_wall_time_of_the_measured_steps(tmp_path: Path) -> None:
    write_events(tmp_path, [loader(), steady(102), end(rss=7)])
    result = summary(tmp_path)
    assert (result.status, result.clock) == ("completed", "optimizer")
    assert (result.steps, result.warmup_steps, result.measured_steps) == (102, 2, 100)
    assert result.samples == 800
    assert result.measured_seconds == pytest.approx(1.0)
    assert result.samples_per_second == pytest.approx(800)
    assert result.batch_size == 8
    assert result.seconds_to_first_step == pytest.approx(1.0)
    assert result.peak_memory_bytes == 7


def test_the_parts_of_a_step_and_the_rest_add_up_to_it(tmp_path: Path) -> None:
    write_events(tmp_path, [steady(50)])
    result = summary(tmp_path)
    assert result.split is not None
    assert result.step_time_ms is not None
    parts = [v for v in to_json(result.split).values() if v is not None]
    assert sum(parts) == pytest.approx(result.step_time_ms.mean)
    assert result.split.host_to_device_copy_ms is None


def test_an_evaluation_pass_inside_the_window_counts_as_time(tmp_path: Path) -> None:
    ends = [1000 + 10 * i + (500 if i >= 60 else 0) for i in range(102)]
    write_events(tmp_path, [steps([row(e) for e in ends])])
    result = summary(tmp_path)
    assert result.measured_seconds == pytest.approx(1.5)
    assert result.step_time_ms is not None
    assert result.step_time_ms.p50 == pytest.approx(10)


def test_no_training_is_said_and_measured_as_nothing(tmp_path: Path) -> None:
    write_events(tmp_path, [loader(), end()])
    result = summary(tmp_path)
    assert result.clock is None
    assert result.samples_per_second is None
    assert result.step_time_ms is None
    assert result.notes == ("no training was seen",)


def test_ranks_that_gpurun_refused_did_not_fail_by_themselves(tmp_path: Path) -> None:
    write_events(tmp_path, [TraitEvent(trait=PARALLEL_REFUSED, detail="why\nwhat to do"), end()])
    assert summary(tmp_path, exit_code=2).status == "refused"
    assert summary(tmp_path, exit_code=139).status == "killed"


def test_a_single_step_has_no_duration(tmp_path: Path) -> None:
    write_events(tmp_path, [steady(1), end()])
    result = summary(tmp_path)
    assert (result.steps, result.measured_steps) == (1, 0)
    assert result.measured_seconds is None
    assert result.samples_per_second is None
    assert result.split is None


def test_what_is_not_measured_is_null(tmp_path: Path) -> None:
    write_events(tmp_path, [steady(50)])
    result = summary(tmp_path)
    unmeasured = (
        result.tokens_per_second,
        result.epoch_seconds,
        result.peak_memory_bytes,
        result.peak_reserved_bytes,
        result.allocator_retries,
        result.host,
        result.gpu_utilization_percent,
        result.gpu_utilization_source,
        result.energy_joules,
        result.joules_per_sample,
        result.final_loss,
    )
    assert set(unmeasured) == {None}
    assert result.devices == ()


@pytest.mark.parametrize(
    ("exit_code", "status"),
    [(0, "completed"), (3, "failed"), (137, "killed"), (None, "crashed")],
)
def test_the_status_follows_the_exit_code(
    tmp_path: Path, exit_code: int | None, status: str
) -> None:
    write_events(tmp_path, [steady(20)])
    assert summary(tmp_path, exit_code).status == status
    assert summary(tmp_path, exit_code, status="timeout").status == "timeout"


def test_a_trial_is_measured_between_its_own_marks(tmp_path: Path) -> None:
    ends = [1000 + 100 * i for i in range(10)] + [1900 + 10 * i for i in range(1, 101)]
    stop = StopEvent(
        reason="enough",
        steps=110,
        window_begin_ns=START_NS + 1950 * MS,
        window_end_ns=START_NS + 2850 * MS,
    )
    write_events(tmp_path, [steps([row(e) for e in ends]), stop, end()])
    result = summary(tmp_path)
    assert result.status == "stopped"
    assert (result.warmup_steps, result.measured_steps) == (15, 90)
    assert result.step_time_ms is not None
    assert result.step_time_ms.mean == pytest.approx(10)


def test_ranks_add_their_throughput_and_wait_for_the_slowest(tmp_path: Path) -> None:
    write_events(tmp_path, [steady(100, step_ms=10), end()], pid=1, rank=0)
    write_events(tmp_path, [steady(100, step_ms=11), end()], pid=2, rank=1)
    result = summary(tmp_path)
    assert result.ranks == 2
    assert result.samples_per_second == pytest.approx(800 + 8000 / 11)
    assert result.step_time_ms is not None
    assert result.step_time_ms.mean == pytest.approx(11)


def test_a_job_before_a_restart_is_not_added_to_the_one_after(tmp_path: Path) -> None:
    write_events(tmp_path, [steady(30)], pid=1, rank=0)
    write_events(tmp_path, [steady(100), end()], pid=2, rank=0, start_ms=60_000)
    result = summary(tmp_path)
    assert (result.ranks, result.steps) == (1, 100)
    assert result.samples_per_second == pytest.approx(800)
    assert any("1 further process" in note for note in result.notes)


def test_a_host_that_runs_ahead_of_the_device_does_not_look_faster(tmp_path: Path) -> None:
    write_events(tmp_path, [steady(100, step_ms=1, device_ms=20), end()])
    result = summary(tmp_path)
    assert result.samples_per_second == pytest.approx(400)
    assert result.step_time_ms is not None
    assert result.step_time_ms.p50 == pytest.approx(20)


def test_epochs_are_passes_over_the_training_loader_without_the_first(tmp_path: Path) -> None:
    rows = [row(1000 + 10 * i) for i in range(90)]
    epochs = [
        epoch(0, "begin", 0),
        epoch(0, "end", 1300, batches=30, trained=30),
        epoch(1, "begin", 1300),
        epoch(1, "end", 1400, batches=0),
        epoch(0, "begin", 1400),
        epoch(0, "end", 1700, batches=30, trained=30),
    ]
    write_events(tmp_path, [*epochs, steps(rows), end()])
    assert summary(tmp_path).epoch_seconds == pytest.approx(0.3)


def test_epochs_of_a_library_that_reads_as_many_batches_as_there_are(tmp_path: Path) -> None:
    rows = [row(1000 + 10 * i) for i in range(350)]  # of a loader of 100 batches
    begins = [epoch(0, "begin", at) for at in (985, 1993, 2993, 3993)]
    write_events(tmp_path, [loader(), *begins, steps(rows), end()])
    assert summary(tmp_path).epoch_seconds == pytest.approx(0.997)


def test_epochs_of_a_loader_that_is_opened_once_for_all_of_them(tmp_path: Path) -> None:
    rows = [row(1000 + 10 * i) for i in range(350)]  # of a loader of 100 batches
    write_events(tmp_path, [loader(), epoch(0, "begin", 500), steps(rows), end()])
    assert summary(tmp_path).epoch_seconds == pytest.approx(1.0)


def test_epochs_that_were_left_early_have_no_duration(tmp_path: Path) -> None:
    rows = [row(1000 + 10 * i) for i in range(90)]
    begins = [epoch(0, "begin", at) for at in (995, 1295, 1595)]
    write_events(tmp_path, [loader(), *begins, steps(rows), end()])
    assert summary(tmp_path).epoch_seconds is None


def test_epochs_of_a_stream_are_known_by_their_ends(tmp_path: Path) -> None:
    rows = [row(1000 + 10 * i, samples={0: (0, 1)}) for i in range(60)]
    epochs = [
        epoch(0, "begin", 995),
        epoch(0, "end", 1295, batches=30, trained=30),
        epoch(0, "begin", 1300),
        epoch(0, "end", 1600, batches=30, trained=30),
    ]
    write_events(tmp_path, [*epochs, steps(rows), end()])
    assert summary(tmp_path).epoch_seconds == pytest.approx(0.3)


@pytest.mark.parametrize("ends_by_itself", [True, False])
def test_an_epoch_in_which_a_side_of_a_live_pair_was_frozen_has_no_duration(
    tmp_path: Path, ends_by_itself: bool
) -> None:
    """Frozen from 1,195 to 5,200 ms, counted from there to 7,000 ms, frozen to 9,000 ms."""
    ends = [*range(1000, 1200, 10), *range(5200, 7000, 10), *range(9000, 9300, 10)]
    turns = [("end", 1195), ("begin", 5200), ("end", 6995), ("begin", 9010)]
    bounds = [(1100, 5500), (5500, 5800), (5800, 6100), (6100, 9100)]
    epochs = [
        one
        for begin, until in bounds
        for one in (epoch(0, "begin", begin), epoch(0, "end", until, batches=30, trained=30))
    ]
    told = [TurnEvent(phase, START_NS + at * MS) for phase, at in turns]
    stop = [] if ends_by_itself else [StopEvent("enough", 230, None, START_NS + 9300 * MS)]
    write_events(tmp_path, [*epochs, *told, steps([row(at) for at in ends]), *stop, end()])
    result = summary(tmp_path)
    assert result.epoch_seconds == pytest.approx(0.3)
    assert result.step_time_ms is not None
    assert result.step_time_ms.p99 == pytest.approx(10)
    assert (result.startup_seconds, result.throughput_drift) == (pytest.approx(0.99), None)


def test_a_side_of_a_live_pair_has_no_use_of_the_processor_over_its_frozen_time(
    tmp_path: Path,
) -> None:
    write_events(tmp_path, [TurnEvent("end", START_NS + 1195 * MS), steady(30)])
    seen = [HostSample(UNIX_NS + at * MS, at / 2000, 5, 1) for at in (0, 20_000)]
    write_samples(tmp_path, seen)
    host = summary(tmp_path).host
    assert host is not None
    assert (host.cpu_percent, host.peak_rss_bytes) == (None, 5)


def test_a_knobs_worst_outcome_over_the_ranks_counts(tmp_path: Path) -> None:
    applied, failed = KnobEvent("tf32", "applied", ""), KnobEvent("tf32", "failed", "no such flag")
    write_events(tmp_path, [applied, steady(30)], pid=1, rank=0)
    write_events(tmp_path, [failed, steady(30)], pid=2, rank=1)
    (outcome,) = summary(tmp_path).knobs
    assert (outcome.outcome, outcome.detail) == ("failed", "no such flag")


def test_hooks_that_failed_and_a_start_that_failed_are_in_the_result(tmp_path: Path) -> None:
    write_events(tmp_path, [HookEvent("loader event", "KeyError: 3"), steady(30)])
    (tmp_path / "spec.json.error").write_text("ImportError: json\n")
    assert summary(tmp_path).hook_errors == (
        "start: ImportError: json",
        "loader event: KeyError: 3",
    )


def test_a_loss_that_is_not_finite_is_null_and_said(tmp_path: Path) -> None:
    rows = [row(1000 + 10 * i, loss=1.0 if i < 25 else math.nan) for i in range(30)]
    write_events(tmp_path, [steps(rows), end()])
    result = summary(tmp_path)
    assert result.final_loss is None
    assert "the last loss was not finite" in result.notes


def test_the_host_figures_are_those_of_the_samples(tmp_path: Path) -> None:
    write_events(tmp_path, [steady(30)])
    first = HostSample(unix_time_ns=UNIX_NS, cpu_seconds=1.0, rss_bytes=5, processes=1)
    last = HostSample(UNIX_NS + 2000 * MS, cpu_seconds=4.0, rss_bytes=9, processes=3)
    write_samples(tmp_path, [first, last])
    host = summary(tmp_path).host
    assert host is not None
    assert host.cpu_percent == pytest.approx(150)
    assert (host.peak_rss_bytes, host.processes) == (9, 3)


def test_what_was_read_from_disk_is_the_latest_that_is_known(tmp_path: Path) -> None:
    write_events(tmp_path, [steady(30)])
    reads = (None, 4096, 1 << 20, None)
    samples = [
        HostSample(UNIX_NS + 500 * i * MS, 1.0, 5, 1, read_bytes=bytes_read)
        for i, bytes_read in enumerate(reads)
    ]
    write_samples(tmp_path, samples)
    host = summary(tmp_path).host
    assert host is not None
    assert host.disk_read_bytes == 1 << 20
    write_samples(tmp_path, [HostSample(UNIX_NS, 1.0, 5, 1)])
    host = summary(tmp_path).host
    assert host is not None
    assert host.disk_read_bytes is None


def test_a_step_copies_as_much_as_the_steps_that_were_looked_at(tmp_path: Path) -> None:
    looked = [
        row(1000 + 10 * i, copy_ms=(2.0, 0.0)[i % 2] if 8 <= i < 32 else None) for i in range(60)
    ]
    write_events(tmp_path, [steps(looked)])
    split = summary(tmp_path).split
    assert split is not None
    assert split.host_to_device_copy_ms == pytest.approx(1.0)
    assert split.rest_ms == pytest.approx(10 - 1 - 2 - 3 - 1 - 1)


def test_where_no_copy_was_seen_its_time_is_not_known(tmp_path: Path) -> None:
    """A batch may come to the device by ways that the runtime does not see."""
    write_events(tmp_path, [steps([row(1000 + 10 * i, copy_ms=0.0) for i in range(30)])])
    split = summary(tmp_path).split
    assert split is not None
    assert split.host_to_device_copy_ms is None


def test_flops_of_all_ranks_are_compared_with_the_peak_of_their_devices(tmp_path: Path) -> None:
    flops = FlopsEvent(step_clock="optimizer", flops=10**12)
    gpu = root("cuda:0", name="NVIDIA H200")
    for rank in (0, 1):
        write_events(tmp_path, [gpu, steady(102), flops], pid=100 + rank, rank=rank)
    result = summary(tmp_path)
    assert result.flops_per_step == 2 * 10**12
    assert result.flops_per_second == pytest.approx(2 * 10**12 / 0.010)
    assert result.mfu == pytest.approx(1e14 / 989.4e12)


def test_a_count_of_another_clock_or_of_one_rank_only_is_none(tmp_path: Path) -> None:
    other = FlopsEvent(step_clock="forward", flops=7)
    write_events(tmp_path, [steady(102), FlopsEvent("optimizer", 7)], pid=100, rank=0)
    write_events(tmp_path, [steady(102), other], pid=101, rank=1)
    result = summary(tmp_path)
    assert (result.flops_per_step, result.flops_per_second, result.mfu) == (None, None, None)


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989.4e12),
        ("NVIDIA H100 PCIe", 756.5e12),
        ("NVIDIA H100 80GB HBM3", 989.4e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("Tesla T4", 65e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
        ("NVIDIA GeForce GTX 1080", None),
        (None, None),
    ],
)
def test_the_peak_of_a_device_is_known_by_its_name_or_not_at_all(
    name: str | None, peak: float | None
) -> None:
    assert peak_flops_per_second(name) == peak


def test_memory_is_a_share_of_the_gpus_or_without_one_of_the_machines(tmp_path: Path) -> None:
    write_events(tmp_path, [root("cuda:0", memory=1000), steady(30), end(allocated=400)])
    assert summary(tmp_path).memory_share == pytest.approx(0.8)
    write_events(tmp_path, [root("cuda:0"), steady(30), end(allocated=400)])
    assert summary(tmp_path).memory_share is None
    write_events(tmp_path, [root(), steady(30), end()])
    write_samples(tmp_path, [HostSample(UNIX_NS, 1.0, available_memory() // 4, 1)])
    assert summary(tmp_path).memory_share == pytest.approx(0.25, rel=0.01)


def test_saves_are_those_of_the_rank_that_spent_most_time_in_them(tmp_path: Path) -> None:
    write_events(tmp_path, [steady(30), end(saves=(2, 1.5))], pid=100, rank=0)
    write_events(tmp_path, [steady(30), end(saves=(0, 0.0))], pid=101, rank=1)
    result = summary(tmp_path)
    assert (result.checkpoint_saves, result.checkpoint_seconds) == (2, 1.5)
    write_events(tmp_path, [steady(30), end()], pid=100, rank=0)
    write_events(tmp_path, [steady(30)], pid=101, rank=1)
    result = summary(tmp_path)
    assert (result.checkpoint_saves, result.checkpoint_seconds) == (None, None)


def test_device_figures_cover_the_measured_window_alone(tmp_path: Path) -> None:
    write_events(tmp_path, [root("cuda:0"), steady(302), end(allocated=42)])
    before = [device(t, utilization_percent=1.0, power_watts=50.0) for t in (0, 500)]
    inside = [device(t) for t in range(1100, 4001, 100)]
    write_samples(tmp_path, [*before, *inside])
    result = summary(tmp_path)
    (use,) = result.devices
    assert use.gpu_utilization_percent == 90.0
    assert use.gpu_utilization_source == "nvml"
    assert use.power_watts == 300.0
    assert result.energy_joules == pytest.approx(0.3 * 2900)
    assert result.joules_per_sample == pytest.approx(300 / 800)
    assert result.peak_memory_bytes == 42


def test_sm_activity_is_preferred_and_weighted_by_time(tmp_path: Path) -> None:
    write_events(tmp_path, [root("cuda"), steady(302), end(allocated=42)])
    activities = {1100: 5.0, 2100: 80.0, 2600: 50.0}
    write_samples(tmp_path, [device(t, sm_activity_percent=a) for t, a in activities.items()])
    result = summary(tmp_path)
    assert result.gpu_utilization_percent == pytest.approx(70)
    assert result.gpu_utilization_source == "gpm_sm_activity"


def test_devices_that_the_training_does_not_use_are_left_out(tmp_path: Path) -> None:
    write_events(tmp_path, [root("cuda:1"), steady(302), end(allocated=42)])
    samples = [device(t, index=i) for t in range(1100, 4000, 300) for i in (0, 1, 2)]
    write_samples(tmp_path, samples)
    assert [d.uuid for d in summary(tmp_path).devices] == ["GPU-1"]


def test_a_window_of_less_than_a_second_has_no_energy(tmp_path: Path) -> None:
    write_events(tmp_path, [root("cuda:0"), steady(82), end(allocated=42)])
    write_samples(tmp_path, [device(t) for t in range(1100, 1800, 100)])
    result = summary(tmp_path)
    assert result.gpu_utilization_percent == 90.0
    assert result.energy_joules is None
    assert result.joules_per_sample is None


def test_ranks_that_see_one_device_each_use_all_that_were_sampled(tmp_path: Path) -> None:
    for rank in (0, 1):
        events = [root("cuda:0"), steady(302), end(allocated=42)]
        write_events(tmp_path, events, pid=rank + 1, rank=rank)
    write_samples(tmp_path, [device(t, index=i) for t in range(1100, 4000, 300) for i in (0, 1)])
    assert [d.uuid for d in summary(tmp_path).devices] == ["GPU-0", "GPU-1"]


def test_the_batches_that_workers_read_ahead_are_warm_up(tmp_path: Path) -> None:
    ahead = loader(workers=4, prefetch_factor=3)
    write_events(tmp_path, [ahead, steady(100), end()])
    assert summary(tmp_path).warmup_steps == 14
    two_a_step = [row(1000 + 10 * i, samples={0: (16, 2)}, microbatches=2) for i in range(100)]
    write_events(tmp_path, [ahead, steps(two_a_step), end()])
    assert summary(tmp_path).warmup_steps == 8


def test_a_knob_that_was_revoked_is_skipped_whatever_was_said_before(tmp_path: Path) -> None:
    told = [("applied", "Net: default"), ("revoked", "recompiled 8 times")]
    events = [KnobEvent("compile", outcome, detail) for outcome, detail in told]
    write_events(tmp_path, [root(), *events, steady(60), end()])
    (knob,) = summary(tmp_path).knobs
    assert (knob.outcome, knob.detail) == ("skipped", "recompiled 8 times")
