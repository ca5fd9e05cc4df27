"""Steps and samples are those of the SPEC's words, whatever the script does around them."""

from __future__ import annotations

from pathlib import Path

from gpurun.measure.run_events import read_run
from gpurun.measure.training_clock import RecordedClock, step_clock
from gpurun.records.events import StepRow
from tests.unit.recorded_runs import epoch, loader, row, steady, steps, write_events


def clock_of(run_dir: Path, *events: object) -> RecordedClock | None:
    write_events(run_dir, events)
    return step_clock(read_run(run_dir).processes[0])


def known_clock(run_dir: Path, *events: object) -> RecordedClock:
    clock = clock_of(run_dir, *events)
    assert clock is not None
    return clock


def test_a_script_without_steps_has_no_clock(tmp_path: Path) -> None:
    assert clock_of(tmp_path, loader()) is None


def test_optimizer_steps_win_over_backward_and_forward(tmp_path: Path) -> None:
    rows = [row(i) for i in range(3)]
    clock = known_clock(tmp_path, steps(rows, "forward"), steps(rows, "backward"), steady(2))
    assert (clock.kind, len(clock.steps)) == ("optimizer", 2)


def test_without_an_optimizer_backward_is_the_clock_and_then_forward(tmp_path: Path) -> None:
    rows = [row(i) for i in range(3)]
    both = known_clock(tmp_path, steps(rows, "forward"), steps(rows, "backward"))
    assert both.kind == "backward"
    assert known_clock(tmp_path, steps(rows, "forward")).kind == "forward"


def test_a_slower_optimizer_falls_inside_the_steps_of_the_faster(tmp_path: Path) -> None:
    rows = []
    for i in range(20):
        rows.append(row(10 * i, source=1, samples={0: (8, 1)}, loss=2.0))
        if i % 5 == 4:  # the generator steps once in five
            rows.append(row(10 * i + 5, source=0, samples={}, loss=0.5))
    clock = known_clock(tmp_path, steps(rows))
    assert len(clock.steps) == 20
    assert sum(clock.samples) == 160
    assert clock.steps[StepRow.FORWARD_NS][5] == 2 * clock.steps[StepRow.FORWARD_NS][4]
    assert clock.steps.loss[5] == 2.5


def test_of_two_equally_busy_optimizers_the_first_to_step_is_the_clock(tmp_path: Path) -> None:
    rows = [row(10 * i + 5 * s, source=s) for i in range(6) for s in (1, 0)]
    clock = known_clock(tmp_path, steps(rows))
    assert set(clock.steps[StepRow.SOURCE]) == {1}


def test_accumulated_batches_add_up_in_one_step(tmp_path: Path) -> None:
    rows = [row(10 * i, samples={0: (32, 4)}, microbatches=4) for i in range(6)]
    clock = known_clock(tmp_path, steps(rows))
    assert (list(clock.samples), list(clock.batches)) == ([32] * 6, [4] * 6)


def test_evaluation_with_gradients_on_is_not_training(tmp_path: Path) -> None:
    rows = [row(10 * i, samples={0: (8, 1)}) for i in range(20)]
    rows[10] = row(100, samples={0: (8, 1), 1: (800, 100)})
    clock = known_clock(tmp_path, loader(0), loader(1), steps(rows))
    assert clock.training_loaders == (0,)
    assert sum(clock.samples) == 160


def test_finished_epochs_tell_training_from_evaluation(tmp_path: Path) -> None:
    rows = [row(10 * i, samples={0: (8, 1), 1: (8, 1)}) for i in range(20)]
    epochs = [epoch(1, "begin", 0), epoch(1, "end", 200, batches=50, trained=20)]
    assert known_clock(tmp_path, *epochs, steps(rows)).training_loaders == (0,)


def test_loaders_read_side_by_side_are_not_added_up(tmp_path: Path) -> None:
    rows = [row(10 * i, samples={0: (8, 1), 1: (56, 1)}) for i in range(20)]
    clock = known_clock(tmp_path, steps(rows))
    assert clock.training_loaders == (0, 1)
    assert clock.loaders == (0,)
    assert sum(clock.samples) == 160


def test_a_loader_built_anew_each_epoch_goes_on_counting(tmp_path: Path) -> None:
    rows = [row(10 * i, samples={i // 10: (8, 1)}) for i in range(40)]
    clock = known_clock(tmp_path, steps(rows))
    assert len(clock.loaders) == 4
    assert sum(clock.samples) == 320


def test_iterable_data_are_counted_at_the_models_input(tmp_path: Path) -> None:
    rows = [row(10 * i, samples={0: (0, 1)}, input_samples=5) for i in range(6)]
    clock = known_clock(tmp_path, steps(rows))
    assert clock.loaders == ()
    assert list(clock.samples) == [5] * 6
