"""The knob of an argument that the user asked to tune: where it puts a value."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpurun.arguments.main_flags import parse
from gpurun.errors import GpurunError
from gpurun.knobs import all_knobs, find
from gpurun.knobs.api import Effect
from tests.unit.knob_facts import facts


@pytest.mark.parametrize(
    ("words", "after"),
    [
        (["--lr", "@tune:1,2"], ("--lr", "2")),
        (["--lr=@tune:1,2", "1"], ("--lr=2", "1")),
        (["1", "--lr", "@tune:1,2", "--depth", "1"], ("1", "--lr", "2", "--depth", "1")),
        (["--layer", "1", "--layer", "@tune:1,2"], ("--layer", "1", "--layer", "2")),
        (["--sizes", "1", "@tune:1,2", "1"], ("--sizes", "1", "2", "1")),
        (["@tune:1,2", "--", "1"], ("2", "--", "1")),
        (["lr=@tune:1,2", "mlr=1"], ("lr=2", "mlr=1")),
    ],
)
def test_the_value_takes_the_place_of_the_scripts_own_and_no_other(
    words: list[str], after: tuple[str, ...]
) -> None:
    options = parse(["--optimize", "train.py", *words], {})
    (argument,) = options.tuned_arguments
    knob = find(argument.name, (), options.tuned_arguments)
    assert list(knob.candidates(facts())) == ["2"]  # type: ignore[arg-type]
    assert knob.arguments("2", options.target.args) == after
    assert knob.arguments("1", options.target.args) == options.target.args


@pytest.mark.parametrize(
    ("name", "argv", "after"),
    [
        ("--lr", (), ("--lr", "2")),
        ("--lr", ("--epochs", "3", "--", "x"), ("--epochs", "3", "--lr", "2", "--", "x")),
        ("--lr", ("--lr", "9"), ("--lr", "2")),
        ("--lr", ("--lr=9", "x"), ("--lr=2", "x")),
        ("lr=", ("x", "lr=9"), ("x", "lr=2")),
        ("lr=", ("x",), ("x", "lr=2")),
        ("lr=", ("lr=2",), ("lr=2",)),
        ("argument 2", ("x", "y"), ("x", "2")),
    ],
)
def test_a_settings_file_needs_only_the_name(
    name: str, argv: tuple[str, ...], after: tuple[str, ...]
) -> None:
    knob = find(name)
    assert knob.effect is Effect.TRAINING
    assert knob.arguments("2", argv) == after


def test_kept_settings_also_fit_a_command_line_with_other_words_before() -> None:
    options = parse(["--optimize", "train.py", "--lr", "@tune:1,2"], {})
    knob = find("--lr", (), options.tuned_arguments)
    assert knob.arguments("2", ("--epochs", "1", "--lr", "1")) == ("--epochs", "1", "--lr", "2")


def test_a_batch_size_by_its_flag_and_a_tuned_argument_leave_each_other_alone() -> None:
    options = parse(["--optimize", "train.py", "--lr", "@tune:32,2", "--", "32"], {})
    batch = find("batch_size")
    value = {"batch_size": 64, "from": 32, "via": "--batch-size", "learning_rate": "keep"}
    wider = batch.arguments(value, options.target.args)
    mine = find("--lr", (), options.tuned_arguments)
    assert mine.arguments("2", wider) == ("--lr", "2", "--batch-size", "64", "--", "32")


def test_each_argument_is_a_knob_before_gpuruns_own_and_all_its_values_are_tried() -> None:
    options = parse(["--optimize", "t.py", "--lr", "@tune[numerics]:1,2,3,4", "@tune:a,b"], {})
    knobs = all_knobs((), options.tuned_arguments)
    assert [(k.name, k.effect.value) for k in knobs[:2]] == [
        ("--lr", "numerics"), ("argument 3", "training"),
    ]  # fmt: skip
    assert knobs[0].most_values >= 3
    assert len(knobs) == len(all_knobs()) + 2


def test_a_value_that_is_no_text_and_a_name_that_is_no_arguments_are_refused() -> None:
    with pytest.raises(TypeError):
        find("--lr").arguments(0.2, ())
    with pytest.raises(IndexError):
        find("argument 2").arguments("x", ("a",))
    with pytest.raises(GpurunError):
        find("lr")


def test_an_effect_that_a_settings_file_invents_is_refused() -> None:
    (argument,) = parse(["--optimize", "t.py", "--lr", "@tune:1,2"], {}).tuned_arguments
    with pytest.raises(GpurunError, match="--lr has the effect 'speed'"):
        find("--lr", (), [replace(argument, effect="speed")])
