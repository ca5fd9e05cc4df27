"""The figures of a launch of several ranks, from recorded events."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.measure.run_events import read_run
from gpurun.records.events import TraitEvent
from gpurun.scaling.finished_launch import LaunchCosts, figures, work_together
from tests.unit.recorded_runs import end, loader, root, row, steady, steps, write_events


def measured(run: Path, ranks: int, *, strong: bool = False, exchange: bool = True) -> LaunchCosts:
    found = figures(read_run(run).processes, ranks, strong=strong, exchange=exchange)
    assert isinstance(found, LaunchCosts), found
    return found


def test_ranks_in_step_add_up(tmp_path: Path) -> None:
    for rank in range(2):
        write_events(tmp_path, [loader(), steady(40), end()], pid=100 + rank, rank=rank)
    found = measured(tmp_path, 2)
    assert found.samples_per_second == pytest.approx(2 * 800, rel=0.01)
    assert found.rate == found.samples_per_second
    assert found.step_time_ms == pytest.approx(10)
    assert found.imbalance == pytest.approx(1.0)


def test_a_rank_counts_only_while_all_are_measured(tmp_path: Path) -> None:
    """The first rank is fast once the other has ended: nobody may take that for scaling."""
    beside = [row(1000 + 20 * i) for i in range(100)]
    alone = [row(3000 + 2 * i) for i in range(30)]
    write_events(tmp_path, [loader(), steps([*beside, *alone]), end()], pid=100, rank=0)
    write_events(tmp_path, [loader(), steady(100, step_ms=20), end()], pid=101, rank=1)
    assert measured(tmp_path, 2).samples_per_second == pytest.approx(2 * 400, rel=0.02)


def test_ranks_that_follow_each_other_are_not_measured(tmp_path: Path) -> None:
    for rank in range(2):
        write_events(
            tmp_path, [loader(), steady(40), end()], pid=100 + rank, rank=rank, start_ms=9000 * rank
        )
    found = figures(read_run(tmp_path).processes, 2, strong=False, exchange=False)
    assert found == "its ranks did not train at the same time"


def test_a_rank_that_does_not_train_is_missed(tmp_path: Path) -> None:
    write_events(tmp_path, [loader(), steady(40), end()], pid=100, rank=0)
    write_events(tmp_path, [end()], pid=101, rank=1)
    found = figures(read_run(tmp_path).processes, 2, strong=False, exchange=True)
    assert found == "only 1 of 2 ranks were seen to train"


def test_a_script_that_starts_its_own_ranks_cannot_be_scaled_from_outside(tmp_path: Path) -> None:
    for process in range(2):
        write_events(tmp_path, [loader(), steady(40), end()], pid=100 + process)
    found = figures(read_run(tmp_path).processes, 1, strong=False, exchange=True)
    assert isinstance(found, str)
    assert "several training processes by itself" in found


def test_without_samples_the_rate_is_that_of_the_scripts_batches(tmp_path: Path) -> None:
    for rank in range(2):
        uncounted = steady(40, samples={}, input_samples=0)
        write_events(tmp_path, [uncounted, end()], pid=100 + rank, rank=rank)
    weak, strong = measured(tmp_path, 2), measured(tmp_path, 2, strong=True)
    assert weak.samples_per_second is None
    assert weak.rate == pytest.approx(200)
    assert strong.rate == pytest.approx(100)


def test_without_exchange_each_rank_takes_what_it_takes(tmp_path: Path) -> None:
    write_events(tmp_path, [loader(), steady(60, step_ms=20), end()], pid=100, rank=0)
    write_events(tmp_path, [loader(), steady(40, step_ms=30), end()], pid=101, rank=1)
    assert measured(tmp_path, 2, exchange=False).imbalance == pytest.approx(30 / 25, rel=0.01)


def test_the_rank_that_waits_least_in_the_backward_pass_is_the_slow_one(tmp_path: Path) -> None:
    """Both take 30 ms a step: one works 27 ms before its backward pass, the other waits in it."""
    for rank, (data_ms, backward_ms) in enumerate(((24, 3), (4, 23))):
        rows = [list(row(1000 + 30 * i, data_ms=data_ms)) for i in range(40)]
        for one in rows:
            one[4] = backward_ms * 1_000_000
        write_events(
            tmp_path,
            [loader(), steps([tuple(x) for x in rows]), end()],
            pid=100 + rank,
            rank=rank,
        )
    assert measured(tmp_path, 2).imbalance == pytest.approx(30 / 20, rel=0.01)


def test_on_a_gpu_the_hosts_backward_pass_tells_nothing(tmp_path: Path) -> None:
    for rank in range(2):
        events = [root("cuda:0"), loader(), steady(40), end()]
        write_events(tmp_path, events, pid=100 + rank, rank=rank)
    assert measured(tmp_path, 2).imbalance is None
    assert measured(tmp_path, 2, exchange=False).imbalance == pytest.approx(1.0)


@pytest.mark.parametrize("trait", ["process_group", "ddp", "hidden_ddp"])
def test_ranks_work_together_where_they_say_so(tmp_path: Path, trait: str) -> None:
    write_events(tmp_path, [steady(4)], pid=100, rank=0)
    assert not work_together(read_run(tmp_path).processes)
    write_events(tmp_path, [TraitEvent(trait, "here")], pid=101, rank=1)
    assert work_together(read_run(tmp_path).processes)
