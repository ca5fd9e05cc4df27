"""A run that is still being written: its latest steps, and the H200's GPU figures."""

from __future__ import annotations

import json
import math
import tracemalloc
from pathlib import Path

import pytest

from gpurun.measure.followed_run import FollowedRun
from gpurun.records.codec import from_json, to_json
from gpurun.records.events import LearningRateEvent
from gpurun.records.monitor import RankState
from gpurun.records.result import RunResult
from tests.conftest import REPOSITORY
from tests.unit.recorded_runs import MS, UNIX_NS, row, steps, write_events

H200 = REPOSITORY / "tests" / "data" / "h200_slow_vision" / "as_written"


def only_rank(run: FollowedRun) -> RankState:
    (rank,) = run.report().trainings[0].ranks
    return rank


def append(path: Path, *events: object) -> None:
    with path.open("a") as file:
        for event in events:
            file.write(json.dumps({"event": event.kind, **to_json(event)}) + "\n")  # type: ignore[attr-defined]


def test_figures_are_those_of_the_latest_steps(tmp_path: Path) -> None:
    slow = [row(1000 + 100 * i, loss=9.0) for i in range(100)]
    write_events(tmp_path, [LearningRateEvent(0, (0.1, 0.5)), steps(slow)])
    run = FollowedRun(tmp_path)
    before = only_rank(run)
    assert (before.steps, before.loss, before.learning_rate) == (100, 9.0, 0.1)
    assert before.step_time_seconds == pytest.approx(0.1)
    assert before.samples_per_second == pytest.approx(80)
    assert before.samples == 800

    fast = [row(11_000 + 10 * i, loss=1.5 if i == 600 else None) for i in range(1000)]
    append(tmp_path / "events-100.jsonl", steps(fast), LearningRateEvent(0, (0.01,)))
    after = only_rank(run)
    assert (after.steps, after.loss, after.learning_rate) == (1100, 1.5, 0.01)
    assert after.step_time_seconds == pytest.approx(0.01)
    assert after.samples_per_second == pytest.approx(800)
    assert after.samples == 8800
    assert after.last_step_unix_seconds == pytest.approx((UNIX_NS + 20_990 * MS) / 1e9)


def test_slow_steps_are_measured_too(tmp_path: Path) -> None:
    write_events(tmp_path, [steps([row(1000 + 30_000 * i) for i in range(20)])])
    assert only_rank(FollowedRun(tmp_path)).step_time_seconds == pytest.approx(30)


def test_one_step_has_no_pace(tmp_path: Path) -> None:
    write_events(tmp_path, [steps([row(1000)])])
    rank = only_rank(FollowedRun(tmp_path))
    assert (rank.steps, rank.step_time_seconds, rank.samples_per_second) == (1, None, None)


def test_two_optimizers_that_take_turns_are_one_clock(tmp_path: Path) -> None:
    rows = [row(1000 + 10 * i + source, source=source) for i in range(50) for source in (0, 1)]
    write_events(tmp_path, [steps(rows)])
    rank = only_rank(FollowedRun(tmp_path))
    assert rank.steps == 50
    assert rank.step_time_seconds == pytest.approx(0.01)


def test_a_loss_that_is_not_finite_is_infinite(tmp_path: Path) -> None:
    write_events(tmp_path, [steps([row(1000 + i, loss=math.nan) for i in range(9)])])
    assert only_rank(FollowedRun(tmp_path)).loss == math.inf


def test_a_line_counts_once_it_is_whole(tmp_path: Path) -> None:
    path = write_events(tmp_path, [])
    line = json.dumps({"event": "steps", **to_json(steps([row(1000), row(1010)]))})
    run = FollowedRun(tmp_path)
    with path.open("a") as file:
        file.write(line[:70])
        file.flush()
        assert run.report().trainings[0].ranks == ()
        file.write(line[70:] + "\n")
    assert only_rank(run).steps == 2
    assert only_rank(run).steps == 2


def test_a_long_log_is_not_held_in_memory(tmp_path: Path) -> None:
    events = [steps([row(1000 + 10 * i) for i in range(n, n + 100)]) for n in range(0, 40_000, 100)]
    path = write_events(tmp_path, events)
    run = FollowedRun(tmp_path)
    tracemalloc.start()
    try:
        run.read()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < path.stat().st_size / 2
    assert only_rank(run).steps == 40_000


def test_damaged_lines_are_left_out(tmp_path: Path) -> None:
    path = write_events(tmp_path, [steps([row(1000 + 10 * i) for i in range(9)])])
    bad = [
        '{"event":"steps","clock":"optimizer","rows":[[0,1],"x",[0,"y"]]}',
        "[]",
        "{",
        '{"event":1}',
    ]
    bad += ['{"event":"steps","clock":"optimizer","rows":[[0,5000,null,{}' + ",[]" * 9 + "]]}"]
    bad += ['{"event":"learning_rate","rates":3}', '{"event":"steps","clock":"moon","rows":7}']
    with path.open("a") as file:
        file.write("\n".join(bad) + "\n\x00\xff\n")
    (tmp_path / "samples.jsonl").write_text('{"event":"device"}\n{"event":"host","x":1}\n')
    report = FollowedRun(tmp_path).report()
    assert report.gpus == ()
    (rank,) = report.trainings[0].ranks
    assert rank.step_time_seconds == pytest.approx(0.01)


def test_ranks_come_in_their_order(tmp_path: Path) -> None:
    for rank in (1, 0):
        write_events(tmp_path, [steps([row(1000), row(1010)])], pid=100 - rank, rank=rank)
    write_events(tmp_path, [], pid=50)  # a loader's worker takes no step
    assert [r.rank for r in FollowedRun(tmp_path).report().trainings[0].ranks] == [0, 1]


def test_a_rank_that_was_started_again_is_one_rank(tmp_path: Path) -> None:
    for attempt, count in enumerate((40, 5)):
        rows = [row(1000 + 10 * i) for i in range(count)]
        write_events(tmp_path, [steps(rows)], pid=200 - attempt, rank=0, start_ms=9000 * attempt)
    rank = only_rank(FollowedRun(tmp_path))
    assert (rank.pid, rank.steps) == (199, 5)


def test_a_missing_folder_is_an_empty_run(tmp_path: Path) -> None:
    report = FollowedRun(tmp_path / "gone").report()
    assert (report.gpus, report.trainings[0].ranks) == ((), ())


def test_a_recorded_h200_run_has_the_figures_of_its_result() -> None:
    result = from_json(RunResult, json.loads((H200 / "result.json").read_text()))
    report = FollowedRun(H200).report()
    (rank,) = report.trainings[0].ranks
    assert rank.steps == result.steps
    assert rank.samples_per_second == pytest.approx(result.samples_per_second, rel=0.1)
    assert result.step_time_ms is not None
    assert rank.step_time_seconds == pytest.approx(result.step_time_ms.mean / 1e3, rel=0.1)
    (gpu,) = report.gpus
    assert (gpu.gpu_id, gpu.name) == (0, "NVIDIA H200")
    assert gpu.gpu_utilization_source == "gpm_sm_activity"
    assert (gpu.power_watts, gpu.temperature_celsius) == (125.5, 37.0)
    assert gpu.memory_total_bytes == 150754820096
