"""However a training loop is written, its record says what happened: one launch, a fork a shape."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpurun.measure.measured_window import Window, measured_window
from gpurun.measure.run_events import ProcessLog, read_run
from gpurun.records.events import StepRow
from tests.forked import NURSERY
from tests.once import once
from tests.run_events import run_in

SCRIPT = Path(__file__).with_name("runtime_shapes.py")


@dataclass(frozen=True)
class Shape:
    """What one training loop left behind."""

    log: ProcessLog
    window: Window | None
    exit_code: int

    @property
    def measured(self) -> Window:
        assert self.window is not None
        return self.window

    def column(self, number: int) -> list[int]:
        return list(self.measured.clock.steps[number])


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Shape]:
    return once(tmp_path_factory, "shapes", measured)


def measured(folder: Path) -> dict[str, Shape]:
    """Each loop of the script in a process of its own, all under one launch."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GPURUN_")}
    environment["PYTHONPATH"] = str(SCRIPT.parents[2])
    done = NURSERY.launch((str(SCRIPT),), folder, environment)
    assert done.returncode == 0, done.stderr.decode()
    run = read_run(run_in(folder))
    assert run.notes == ()
    logs = {log.process.pid: log for log in run.processes}
    ran = json.loads((folder / "shapes.json").read_text())
    return {
        name: Shape(logs[pid], measured_window(logs[pid]), code)
        for name, (pid, code) in ran.items()
    }


ONE_LOADER = (0,)
MODEL = ("Sequential",)
EXPECTED = {
    # clock, steps, samples, batch size, training loaders, roots
    "plain": ("optimizer", 12, 96, 8, ONE_LOADER, MODEL),
    "gan": ("optimizer", 12, 96, 8, ONE_LOADER, ("Linear", "Sequential")),
    "twins": ("optimizer", 12, 96, 8, ONE_LOADER, ("Sequential", "Sequential")),
    "subclass": ("optimizer", 12, 96, 8, ONE_LOADER, MODEL),
    "wrapper": ("optimizer", 12, 96, 8, ONE_LOADER, MODEL),
    "accumulation_3_steps": ("optimizer", 3, 96, 8, ONE_LOADER, MODEL),
    "lbfgs": ("optimizer", 12, 96, 8, ONE_LOADER, MODEL),
    "sharpness_aware": ("optimizer", 12, 96, 8, ONE_LOADER, MODEL),
    "two_steps_a_batch_24_steps": ("optimizer", 24, 96, 8, ONE_LOADER, MODEL),
    "by_hand_with_backward": ("backward", 12, 96, 8, ONE_LOADER, MODEL),
    "by_hand_with_grad": ("backward", 12, 96, 8, ONE_LOADER, MODEL),
    "optimizer_never_steps": ("backward", 12, 96, 8, ONE_LOADER, MODEL),
    "inference": ("forward", 12, 96, 8, ONE_LOADER, MODEL),
    "inference_fetched_with_gradients": ("forward", 12, 96, 8, ONE_LOADER, MODEL),
    "inference_of_several_calls_a_batch": ("forward", 12, 96, 8, ONE_LOADER, MODEL),
    "inference_of_two_calls_a_batch": ("forward", 25, 96, 8, ONE_LOADER, MODEL),
    "inference_after_statistics": ("forward", 12, 96, 8, (1, 0), MODEL),
    "statistics_and_evaluation_first": ("optimizer", 12, 96, 8, (2,), MODEL),
    "evaluation_without_gradients": ("optimizer", 12, 96, 8, ONE_LOADER, MODEL),
    "evaluation_with_gradients": ("optimizer", 12, 96, 8, ONE_LOADER, MODEL),
    "evaluation_of_the_training_data_with_gradients": (("optimizer", 12, 96, 8, ONE_LOADER, MODEL)),
    "never_back_in_training_mode": ("optimizer", 12, 96, 8, ONE_LOADER, MODEL),
    "two_loaders": ("optimizer", 12, 96, 8, (0, 1), MODEL),
    "rebuilt_each_epoch": ("optimizer", 12, 96, 8, (0, 1, 2), MODEL),
    "left_early": ("optimizer", 12, 96, 8, ONE_LOADER, MODEL),
    "iterable": ("optimizer", 12, 96, 8, ONE_LOADER, MODEL),
    "no_automatic_batches": ("optimizer", 12, 96, 8, ONE_LOADER, MODEL),
    "ten_thousand_million_samples": ("optimizer", 12, 96, 8, ONE_LOADER, MODEL),
    "loader_subclass": ("optimizer", 12, 96, 8, ONE_LOADER, MODEL),
    "own_batch_sampler": ("optimizer", 12, 96, 8, ONE_LOADER, MODEL),
    "library_builds_twice": ("optimizer", 12, 96, 8, (2,), MODEL),
    "manual_tokens": ("optimizer", 12, 96, 8, (), ("Tokens",)),
    "nested_inputs": ("optimizer", 12, 96, 8, (), ("Tokens",)),
    "actor_and_critic": ("optimizer", 12, 96, 8, (), ("Sequential", "Sequential")),
    "actor_and_critic_apart": ("optimizer", 12, 96, 8, (), ("Sequential", "Sequential")),
    "actor_and_critic_in_turn": ("optimizer", 12, 96, 8, (), ("Sequential", "Sequential")),
    "one_observation_at_a_time": ("optimizer", 12, 96, 1, (), MODEL),
    "reads_one_batch_ahead": ("optimizer", 6, 96, 8, ONE_LOADER, MODEL),
    "parts_called_alone": ("optimizer", 12, 96, 8, (), ("Conv1d", "Conv1d")),
    "micro_batches_without_a_loader_3_steps": (
        ("optimizer", 3, 96, 8, (), ("Sequential", "Sequential"))
    ),
    "two_batches_in_one_pass_6_steps": ("optimizer", 6, 96, 8, (), MODEL),
    "real_and_generated_6_steps": ("optimizer", 6, 96, 8, (), ("Linear", "Sequential")),
    "nested_roots_called_twice": ("optimizer", 12, 96, 8, ONE_LOADER, ("Outer",)),
    "forward_never_called": ("optimizer", 12, 96, 8, ONE_LOADER, ()),
    "lazy_layers": ("optimizer", 12, 96, 8, ONE_LOADER, MODEL),
    "scaler": ("optimizer", 12, 96, 8, ONE_LOADER, MODEL),
    "checkpointing": ("optimizer", 12, 96, 8, ONE_LOADER, ("Linear", "Linear")),
    "step_that_raises": ("optimizer", 12, 96, 8, ONE_LOADER, MODEL),
    "a_model_after_the_other_24_steps": (
        "optimizer",
        24,
        192,
        8,
        (0, 1),
        ("Sequential", "Sequential"),
    ),
    "a_sweep_24_steps": ("optimizer", 24, 192, 8, (0, 1), ("Sequential", "Sequential")),
    "meta_learning": ("optimizer", 12, 96, 8, ONE_LOADER, ("Sequential",) * 25),
    "trains_in_a_thread": ("optimizer", 12, 96, 8, ONE_LOADER, MODEL),
    "moving_average": ("optimizer", 12, 96, 8, ONE_LOADER, MODEL),
    "closes_every_descriptor": ("optimizer", 12, 96, 8, (1,), MODEL),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_record_tells_what_the_loop_did(shapes: dict[str, Shape], name: str) -> None:
    shape = shapes[name]
    clock = shape.measured.clock
    found = (
        clock.kind,
        len(clock.steps),
        sum(clock.samples),
        shape.measured.batch_size,
        clock.training_loaders,
        tuple(root.class_name for root in shape.log.roots),
    )
    assert found == EXPECTED[name]
    assert shape.exit_code == 0
    assert shape.log.hooks == ()
    assert shape.log.end is not None


@pytest.mark.parametrize("name", EXPECTED)
def test_the_split_adds_up_to_the_mean_step(shapes: dict[str, Shape], name: str) -> None:
    window = shapes[name].measured
    step, split = window.step_time(), window.split()
    if step is None or split is None:
        assert window.measured_steps == 0
        return
    parts = (
        split.data_wait_ms,
        split.forward_ms,
        split.backward_ms,
        split.optimizer_ms,
        split.rest_ms,
    )
    assert sum(x for x in parts if x is not None) == pytest.approx(step.mean)
    assert split.rest_ms is not None


def test_calls_before_a_model_is_known_have_their_own_batches(shapes: dict[str, Shape]) -> None:
    for name in ("inference", "inference_fetched_with_gradients"):
        clock = shapes[name].measured.clock
        assert list(clock.samples) == [8] * 12
        assert all(shapes[name].column(StepRow.DATA_NS))


def test_steps_of_two_models_that_infer_are_in_the_order_of_time(shapes: dict[str, Shape]) -> None:
    ends = shapes["inference_by_two_models"].column(StepRow.END_NS)
    assert ends == sorted(ends)
    assert len(ends) == 9, "the first three calls of the second model are not known to be a root's"


def test_accumulation_counts_its_micro_batches_from_the_first_step(
    shapes: dict[str, Shape],
) -> None:
    shape = shapes["accumulation_3_steps"]
    assert shape.column(StepRow.MICROBATCHES) == [4, 4, 4]
    assert list(shape.measured.clock.samples) == [32, 32, 32]


def test_a_batch_that_is_fetched_early_counts_in_the_step_that_uses_it(
    shapes: dict[str, Shape],
) -> None:
    assert list(shapes["reads_one_batch_ahead"].measured.clock.samples) == [16] * 6


def test_a_closure_runs_several_passes_in_one_step(shapes: dict[str, Shape]) -> None:
    assert min(shapes["lbfgs"].column(StepRow.MICROBATCHES)) > 1


def test_a_batch_that_two_steps_use_counts_in_the_first(shapes: dict[str, Shape]) -> None:
    shape = shapes["two_steps_a_batch_24_steps"]
    assert list(shape.measured.clock.samples) == [8, 0] * 12
    assert set(shapes["sharpness_aware"].column(StepRow.MICROBATCHES)) == {2}


def test_checkpointing_is_no_accumulation(shapes: dict[str, Shape]) -> None:
    assert set(shapes["checkpointing"].column(StepRow.MICROBATCHES)) == {1}
    assert set(shapes["checkpointing"].column(StepRow.INPUT_SAMPLES)) == {8}


def test_a_scaled_loss_is_recorded_unscaled(shapes: dict[str, Shape]) -> None:
    loss = shapes["scaler"].measured.clock.steps.last_loss()
    assert loss is not None
    assert loss < 10  # the scale is 1024
    assert {t.trait for t in shapes["scaler"].log.traits} >= {"grad_scaler", "autocast"}


def test_tokens_are_counted_where_sequences_are_fed(shapes: dict[str, Shape]) -> None:
    for name in ("manual_tokens", "nested_inputs"):
        assert set(shapes[name].column(StepRow.TOKENS)) == {8 * 16}
        assert shapes[name].log.roots[0].input_shape == (8, 16)
    assert set(shapes["plain"].column(StepRow.TOKENS)) == {0}


def test_a_batch_that_two_models_see_counts_once_in_every_step(shapes: dict[str, Shape]) -> None:
    for name in ("actor_and_critic", "actor_and_critic_apart", "actor_and_critic_in_turn"):
        assert set(shapes[name].measured.clock.samples) == {8}
    several = shapes["micro_batches_without_a_loader_3_steps"]
    assert list(several.measured.clock.samples) == [32, 32, 32]


def test_evaluation_counts_no_samples_of_training(shapes: dict[str, Shape]) -> None:
    for name in ("evaluation_with_gradients", "evaluation_without_gradients"):
        assert set(shapes[name].column(StepRow.INPUT_SAMPLES)[1:]) == {8}


def test_a_batch_of_the_training_data_that_is_only_evaluated_counts_nowhere(
    shapes: dict[str, Shape],
) -> None:
    shape = shapes["evaluation_of_the_training_data_with_gradients"]
    assert list(shape.measured.clock.samples) == [8] * 12


def test_every_model_of_a_cross_validation_is_timed(shapes: dict[str, Shape]) -> None:
    steps = shapes["a_model_after_the_other_24_steps"].log.steps["optimizer"]
    assert len(steps) == 24
    assert min(steps[StepRow.FORWARD_NS]) > 0


def test_a_thread_that_reads_ahead_is_not_what_a_step_waits_for(shapes: dict[str, Shape]) -> None:
    shape = shapes["thread_reads_ahead"]
    assert sum(shape.measured.clock.samples) == 96
    assert set(shape.column(StepRow.DATA_NS)) == {0}
    assert min(shapes["trains_in_a_thread"].column(StepRow.DATA_NS)[1:]) > 0


def test_a_model_that_is_never_called_is_said_so(shapes: dict[str, Shape]) -> None:
    assert [t.trait for t in shapes["forward_never_called"].log.traits] == ["no_root"]


def test_epochs_are_seen_and_those_left_early_have_no_end(shapes: dict[str, Shape]) -> None:
    def ends(name: str) -> int:
        return sum(event.phase == "end" for event in shapes[name].log.epochs)

    assert ends("plain") == 1
    assert ends("rebuilt_each_epoch") == 3
    assert ends("left_early") == 0


def test_leaving_without_goodbye_keeps_most_of_the_record(shapes: dict[str, Shape]) -> None:
    shape = shapes["leaves_at_once"]
    assert len(shape.measured.clock.steps) >= 6
    assert shape.log.end is None


def test_a_script_that_does_not_train_leaves_a_record_without_steps(
    shapes: dict[str, Shape],
) -> None:
    assert shapes["no_training"].window is None
    assert shapes["no_training"].exit_code == 0
