"""The table of batch sizes: the fastest, and the largest that fits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpurun.arguments.options import Options, Target, TargetKind
from gpurun.knobs.api import Skip
from gpurun.records.facts import Facts
from gpurun.records.tuning import TrialRecord
from gpurun.report.ladder import batch_grid
from gpurun.tuner.search.changes import batch_table, largest_that_fits, other_batches
from tests.unit.knob_facts import GIB, H200, facts, gpu_facts, loader
from tests.unit.report_records import trial, tuning_report

OTHERS = {"tf32": True}


def batch(size: int) -> dict[str, Any]:
    value = {"batch_size": size, "from": 32, "via": "--batch-size", "learning_rate": "sqrt"}
    return {**OTHERS, "batch_size": value}


def launch(size: int, gib: float | None, rate: float | None = 100.0, **more: Any) -> TrialRecord:
    held = None if gib is None else int(gib * GIB)
    knobs = OTHERS if size == 32 else batch(size)
    return trial(size, knobs, rate, peak_reserved_bytes=held, peak_memory_bytes=held, **more)


def ground(**changes: Any) -> Facts:
    memory = {"machine": replace(H200, gpu_memory_bytes=100 * GIB)}
    return gpu_facts(**{**memory, **loader(dataset_length=None), **changes})


TRIED = [trial(1, {}, 50.0), launch(32, 8.0), launch(128, 20.0, 300.0), launch(64, 12.0, 200.0)]


def options(*allowed: str) -> Options:
    return Options(Target(TargetKind.SCRIPT, "train.py"), optimize=True, allow=allowed)


def test_a_number_that_stands_elsewhere_too_is_tried_but_not_where_it_would_be_applied() -> None:
    elsewhere, unknown = facts(batch_uses=("train.py:9: h = zeros(32)",)), facts(batch_uses=None)
    for on in (elsewhere, unknown):
        assert not isinstance(other_batches(on, options("numerics")), Skip)
        assert isinstance(other_batches(on, options("training")), Skip)
    refused = other_batches(elsewhere, options("training"))
    assert isinstance(refused, Skip)
    assert "elsewhere, too: train.py:9: h = zeros(32); with a flag" in refused.reason
    assert not isinstance(other_batches(facts(), options("training")), Skip)


def test_the_largest_that_fits_lies_on_the_line_of_the_two_largest_with_a_tenth_free() -> None:
    found = largest_that_fits(TRIED, ground())
    assert found == batch(672)["batch_size"], "4 GiB and 1/8 GiB a sample: 688 have 90 GiB"


def test_it_is_no_larger_than_the_data_allow() -> None:
    short = ground(**loader(dataset_length=1000))
    found = largest_that_fits(TRIED, short)
    assert found is not None
    assert found["batch_size"] == 224, "an epoch keeps four steps"


@pytest.mark.parametrize(
    ("trials", "on"),
    [
        (TRIED, facts()),
        (TRIED[:2], ground()),
        ([*TRIED[:2], launch(128, 8.0)], ground()),
        ([*TRIED, launch(672, 88.0)], ground()),
        ([*TRIED, launch(672, None, None, reason="out of memory")], ground()),
    ],
    ids=["on a CPU", "one size", "memory that does not grow", "tried", "tried in vain"],
)
def test_else_there_is_none_to_try(trials: list[TrialRecord], on: Facts) -> None:
    assert largest_that_fits(trials, on) is None


def test_the_table_names_the_fastest_and_the_largest() -> None:
    other = trial(9, {"batch_size": batch(256)["batch_size"]}, 1.0)
    trials = [other, *TRIED, launch(672, 88.0, 290.0)]
    told = batch_table(trials, ground())
    assert [(one.batch_size, one.told) for one in told] == [
        (32, ("as it is",)),
        (64, ()),
        (128, ("fastest",)),
        (672, ("largest that fits",)),
    ], "under the same other settings alone"
    assert told[-1].memory_share == pytest.approx(0.88)
    shown = batch_grid(tuning_report(batches=told))
    assert [row[0] for row in shown.rows] == ["32", "64", "128", "672"]
    assert shown.rows[-1][-2:] == ("88.0 %", "largest that fits")


def test_a_size_that_failed_says_why_and_one_size_is_no_table() -> None:
    failed = launch(672, None, None, reason="out of memory")
    told = batch_table([*TRIED, failed], ground())
    assert told[-1].told == ("out of memory",)
    assert batch_table(TRIED[:2], ground()) == ()
    assert batch_grid(tuning_report(batches=told[:1])).rows == ()
