"""The batch size: by which door it is changed, how far, and what goes with it."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import pytest

from gpurun.knobs import find
from gpurun.knobs.api import Skip
from gpurun.knobs.batch_size import side_effects
from gpurun.records.facts import BatchFlag, Facts
from tests.unit.knob_facts import GIB, OPTIMIZER, facts, gpu_facts, loader, result

FLAG = BatchFlag("--batch-size", 32)


def values(ground: Facts) -> list[dict[str, Any]]:
    found = find("batch_size").candidates(ground)
    assert not isinstance(found, Skip), found
    return list(found)


def reason(ground: Facts) -> str:
    found = find("batch_size").candidates(ground)
    assert isinstance(found, Skip), found
    return found.reason


def value(size: int, via: str = "--batch-size", rule: str = "linear") -> dict[str, Any]:
    return {"batch_size": size, "from": 32, "via": via, "learning_rate": rule}


def test_the_scripts_own_flag_comes_first() -> None:
    found = values(facts(batch_flag=FLAG, batch_uses=("scale = args.batch_size / 256",)))
    assert [(v["batch_size"], v["via"]) for v in found] == [
        (128, "--batch-size"),
        (64, "--batch-size"),
    ]


def test_without_a_flag_the_loader_is_edited_and_where_else_the_number_stands_is_told() -> None:
    assert values(facts())[0]["via"] == "loader"
    assert not any("stays where" in told for told in side_effects(facts(), value(64, "loader")))
    named = facts(batch_uses=(" h = zeros(32)",))
    assert values(named)[0]["via"] == "loader"
    also = "32 stays where the script has its batch size besides the loader"
    assert side_effects(named, value(64, "loader"))[-1] == f"{also}: h = zeros(32)"
    unknown = facts(batch_uses=None)
    assert values(unknown)[0]["learning_rate"] == "keep", "the script may compute it"
    assert side_effects(unknown, value(64, "loader"))[-1].startswith(f"{also}; where that is")


@pytest.mark.parametrize(
    "changes", [{"custom_batch_sampler": True}, {"subclass": True}, {"batch_size": None}]
)
def test_loaders_with_rules_of_their_own_are_not_resized(changes: dict[str, Any]) -> None:
    assert reason(facts(**loader(**changes)))


def test_an_epoch_keeps_at_least_four_steps() -> None:
    assert [v["batch_size"] for v in values(facts(**loader(dataset_length=300)))] == [64]
    assert "would not fit" in reason(facts(**loader(dataset_length=200)))


def test_memory_bounds_it_with_head_room() -> None:
    full = replace(result(), peak_memory_bytes=60 * GIB)
    assert [v["batch_size"] for v in values(gpu_facts(result=full))] == [64]
    assert "memory" in reason(gpu_facts(result=replace(full, peak_memory_bytes=100 * GIB)))


def test_it_is_doubled_while_throughput_grows() -> None:
    knob, ground = find("batch_size"), facts()
    assert knob.refine(ground, value(128), 1.2) == value(256)
    assert knob.refine(ground, value(128), 1.02) is None
    assert knob.refine(ground, value(64), 1.9) is None, "128 is among the candidates already"
    assert knob.refine(ground, value(2048), 1.9) is None, "the data set is too small for 4096"


@pytest.mark.parametrize(
    ("kind", "rule"), [("SGD", "linear"), ("AdamW", "sqrt"), ("Adam", "sqrt"), ("LBFGS", "keep")]
)
def test_the_learning_rate_follows_the_kind_of_optimizer(kind: str, rule: str) -> None:
    ground = facts(optimizers=(replace(OPTIMIZER, class_name=kind),))
    assert values(ground)[0]["learning_rate"] == rule


def test_a_script_that_scales_its_own_rate_is_not_scaled_again() -> None:
    own = facts(batch_flag=FLAG, batch_uses=("lr = args.lr * args.batch_size / 256",))
    assert values(own)[0]["learning_rate"] == "keep"
    unknown = facts(batch_flag=FLAG, batch_uses=None)
    assert values(unknown)[0]["learning_rate"] == "keep"
    other = facts(batch_flag=FLAG, batch_uses=("scalar = args.batch_size",))
    assert values(other)[0]["learning_rate"] == "linear"


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("--lr", "0.1"),
        ("--batch-size", "32"),
        ("--batch-size=32", "--lr", "0.1"),
        ("-b", "32"),
        ("-b32",),
        ("--batch", "32"),
        ("--batch=32",),
        ("--batch-size", "16", "--batch-size", "32"),
        ("--lr", "0.1", "--", "data"),
        ("data",),
    ],
)
@pytest.mark.parametrize("flag", ["--batch-size", "-b"])
def test_the_script_parses_the_new_size_however_the_old_one_was_given(
    argv: tuple[str, ...], flag: str
) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-b", "--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float)
    parser.add_argument("data", nargs="?")
    before = parser.parse_args(list(argv))
    after = parser.parse_args(list(find("batch_size").arguments(value(64, flag), argv)))
    assert after.batch_size == 64
    assert (after.lr, after.data) == (before.lr, before.data)


def test_another_flag_with_the_same_beginning_is_left_alone() -> None:
    argv = ("--b", "0.9", "--batch-size-eval", "100")
    assert find("batch_size").arguments(value(64), argv) == (*argv, "--batch-size", "64")


def test_a_resized_loader_leaves_the_command_line_alone() -> None:
    assert find("batch_size").arguments(value(64, "loader"), ("--lr", "1")) == ("--lr", "1")


def test_what_else_changes_is_told() -> None:
    ground = facts(
        batch_uses=("warmup = 5000 // args.batch_size",),
        traits={"scheduler_total_steps": "train.py:20"},
    )
    text = " | ".join(side_effects(ground, value(128)))
    assert "learning rate × 4 (linear rule)" in text
    assert "steps an epoch: 78 instead of 313" in text
    assert "train.py:20" in text
    assert "warmup = 5000" in text
