"""The rows of a ladder: stages with their changes, merged where a launch cannot tell them apart."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpurun.knobs.api import Effect
from gpurun.pairs.gain import NOTHING, Look
from gpurun.records.tuning import Candidate, LadderRow
from gpurun.tuner.proof.finalist import Finalist
from gpurun.tuner.rungs import (
    APPLY_TRAINING,
    Rung,
    Stages,
    batch_row,
    first_rows,
    kept_rows,
    rows_not_kept,
    told_apart,
)
from tests.unit.tuner_searches import Planted
from tests.unit.tuner_trials import trial

ORDER = ["data", "transfer", "precision", "compile"]
EFFECTS = {"data": Effect.PIPELINE, "transfer": Effect.PIPELINE}
TOP = Candidate(
    knobs=dict.fromkeys(ORDER, 1), samples_per_second=600.0, step_time_ms=None,
    peak_memory_bytes=4000, gpu_utilization_percent=75.0,
)  # fmt: skip
PROVEN = Look(6.0, (5.3, 7.6), 1e-5, significant=True, settled=True, pairs_used=3)
BATCH_64 = {"batch_size": 64, "from": 32, "via": "loader"}


def rung(stage: str, speedup: float, half: float = 0.05, **parts: Any) -> Rung:
    return Rung(stage, math.log(speedup), half, **parts)


def stages(*names: str) -> Stages:
    return Stages({}, dict.fromkeys(names, 1), knob_of)


def knob_of(name: str) -> Planted:
    return Planted(name, stage=name, effect=EFFECTS.get(name, Effect.NUMERICS))


def rows_of(*rungs: Rung, names: Sequence[str] = ORDER) -> list[LadderRow]:
    return kept_rows(stages(*names), rungs, TOP, PROVEN, 100.0)


def test_each_rung_is_a_row_with_its_speed_so_far_and_its_step() -> None:
    rows = rows_of(rung("data", 2.0), rung("transfer", 3.0), rung("precision", 4.5),
                   rung("compile", 6.0))  # fmt: skip
    assert [(row.stage, row.merged, row.kept) for row in rows] == [
        (stage, (), True) for stage in ORDER
    ]
    assert [row.changes for row in rows] == [{stage: 1} for stage in ORDER]
    assert [row.speedup for row in rows] == pytest.approx([2.0, 3.0, 4.5, 6.0])
    assert [row.step_speedup for row in rows] == pytest.approx([2.0, 1.5, 1.5, 6.0 / 4.5])
    assert [row.effect for row in rows] == ["pipeline", "pipeline", "numerics", "numerics"]
    assert [row.samples_per_second for row in rows] == pytest.approx([200.0, 300.0, 450.0, 600.0])
    low, high = rows[1].step_speedup_confidence_interval or (0.0, 0.0)
    assert low < 1.5 < high
    assert math.log(high / low) == pytest.approx(2 * math.hypot(0.05, 0.05))


def test_the_last_row_says_what_the_proof_says() -> None:
    last = rows_of(rung("data", 2.0), rung("compile", 6.0))[-1]
    assert (last.speedup, last.speedup_confidence_interval) == (6.0, (5.3, 7.6))
    assert (last.samples_per_second, last.peak_memory_bytes) == (600.0, 4000)
    assert last.gpu_utilization_percent == 75.0


def test_a_step_that_contains_one_is_no_row_of_its_own() -> None:
    rows = rows_of(rung("data", 2.0), rung("transfer", 2.05), rung("precision", 4.0),
                   rung("compile", 6.0))  # fmt: skip
    assert [(row.stage, row.merged) for row in rows] == [
        ("data", ()), ("precision", ("transfer",)), ("compile", ()),
    ]  # fmt: skip
    assert rows[1].changes == {"transfer": 1, "precision": 1}
    assert rows[1].step_speedup == pytest.approx(2.0)


def test_neighbours_for_which_there_was_no_time_are_one_row() -> None:
    rows = rows_of(rung("transfer", 3.0), rung("compile", 6.0))
    assert [(row.stage, row.merged) for row in rows] == [
        ("transfer", ("data",)), ("compile", ("precision",)),
    ]  # fmt: skip
    assert rows[0].effect == "pipeline"


def test_the_top_is_always_a_row_and_takes_in_what_it_cannot_be_told_from() -> None:
    (row,) = rows_of(rung("data", 5.9), rung("transfer", 6.1), rung("precision", 6.0),
                     rung("compile", 6.0))  # fmt: skip
    assert (row.stage, row.merged) == ("compile", ("data", "transfer", "precision"))
    assert row.changes == dict.fromkeys(ORDER, 1)
    (one,) = rows_of(rung("compile", 1.001), names=["compile"])
    assert one.stage == "compile"
    assert told_apart([]) == []


def test_what_was_not_measured_is_null() -> None:
    unknown = rows_of(rung("data", 2.0, math.inf), rung("compile", 6.0, math.inf))
    assert [row.step_speedup_confidence_interval for row in unknown] == [None]
    first, _ = rows_of(rung("data", 2.0), rung("compile", 6.0))
    assert (first.peak_memory_bytes, first.joules_per_sample, first.loss_deviation) == (None,) * 3
    done = trial(200.0, {"data": 1})
    done = replace(done, record=replace(done.record, peak_memory_bytes=3000))
    known, _ = rows_of(rung("data", 2.0, trial=done, loss_deviation=0.01), rung("compile", 6.0))
    assert (known.peak_memory_bytes, known.loss_deviation) == (3000, 0.01)
    (rateless,) = kept_rows(stages("data"), [rung("data", 2.0)], TOP, NOTHING, None)
    assert rateless.speedup_confidence_interval is None


def test_the_first_row_is_the_script_as_it_is() -> None:
    (row,) = first_rows(Candidate({}, 100.0, None, 5000, 32.0))
    assert (row.stage, row.changes, row.kept) == ("as it is", {}, True)
    assert (row.samples_per_second, row.speedup, row.loss_deviation) == (100.0, 1.0, 0.0)


def test_what_makes_a_script_fit_is_the_second_row_and_nothing_is_known_without_it() -> None:
    as_it_is, fits = first_rows(Candidate({"checkpointing": "blocks"}, 100.0, None, 5000, 32.0))
    assert (as_it_is.stage, as_it_is.samples_per_second, as_it_is.speedup) == ("as it is",) + (
        None,
    ) * 2
    assert (fits.stage, fits.changes, fits.kept) == ("memory", {"checkpointing": "blocks"}, True)
    assert (fits.samples_per_second, fits.reason) == (100.0, "makes it fit")


def test_what_is_left_out_in_the_end_is_a_row_a_stage_with_its_reasons() -> None:
    reasons = {"data": "it loses in its rung", "precision": "the loss is off"}
    rows = rows_not_kept(stages("precision", "data"), reasons.__getitem__)
    assert [(row.stage, row.kept, row.speedup, row.reason) for row in rows] == [
        ("data", False, None, "it loses in its rung"),
        ("precision", False, None, "the loss is off"),
    ]


def test_a_larger_batch_is_a_row_if_it_was_proven_with_how_to_apply_it() -> None:
    larger = Finalist("larger batch", {"data": 1, "batch_size": BATCH_64})
    below = Candidate({"data": 1}, 200.0, None, 5000, 32.0)
    assert batch_row(larger, None, below, 100.0, "") == []
    larger.pairs = [(100.0, 300.0), (100.0, 301.0)]
    (row,) = batch_row(larger, None, below, 100.0, "")
    assert (row.stage, row.changes, row.kept) == ("batch", {"batch_size": BATCH_64}, False)
    assert row.reason == APPLY_TRAINING
    assert row.speedup == pytest.approx(3.0, rel=0.01)
    (refused,) = batch_row(larger, None, below, 100.0, "no faster in the proof")
    assert (refused.speedup, refused.reason) == (None, "no faster in the proof")
