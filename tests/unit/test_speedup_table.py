"""The table of `scripts/bench_speedup.py`: ratios within rounds, no figure without a launch."""

from __future__ import annotations

import math

import pytest

from scripts.speedup_table import (
    AS_WRITTEN,
    CHOSEN,
    HAND_TUNED,
    NOT_MEASURED,
    SM_ACTIVITY,
    TRAINING,
    Comparison,
    Launch,
    paired,
    row,
    table,
)

VARIANT = f"{HAND_TUNED} --mode off"


def launch(rate: float | None, busy: float | None = None, source: str = SM_ACTIVITY) -> Launch:
    return Launch(rate, busy, None if busy is None else source, seconds=1.0)


def compared(**sides: list[Launch | None]) -> Comparison:
    names = {"written": AS_WRITTEN, "chosen": CHOSEN, "hand": HAND_TUNED, "variant": VARIANT}
    return Comparison(
        "net",
        verdict="faster",
        tuning_seconds=100.0,
        knobs={"tf32": True},
        launches={names[side]: launches for side, launches in sides.items()},
    )


def test_a_machine_that_drifts_between_rounds_does_not_show_in_the_ratio() -> None:
    ratio = paired([100.0, 50.0, 200.0], [300.0, 150.0, 600.0])
    assert ratio is not None
    assert ratio.value == pytest.approx(3.0)
    assert ratio.interval is not None
    assert ratio.interval == pytest.approx((3.0, 3.0))


def test_the_interval_is_that_of_students_t_over_rounds() -> None:
    ratio = paired([1.0, 1.0, 1.0], [1.0, 2.0, 4.0])
    assert ratio is not None
    assert ratio.interval is not None
    half = 4.3027 * math.log(2) / math.sqrt(3)  # t at 97.5 %, two degrees of freedom
    assert ratio.value == pytest.approx(2.0)
    assert math.log(ratio.interval[1] / 2) == pytest.approx(half, rel=1e-3)


def test_a_round_in_which_one_side_was_not_run_does_not_count() -> None:
    ratio = paired([100.0, None, 100.0], [200.0, 9000.0, 200.0])
    assert ratio is not None
    assert (ratio.rounds, ratio.value) == (2, pytest.approx(2.0))


def test_one_round_is_shown_without_an_interval_and_none_as_not_measured() -> None:
    found = compared(written=[launch(100.0), None], chosen=[launch(250.0), None])
    cells = row(found)
    assert cells[2] == "×2.50"
    assert cells[3] == cells[4] == NOT_MEASURED


def test_the_fastest_variant_by_hand_is_the_peer() -> None:
    found = compared(
        written=[launch(100.0)] * 2,
        chosen=[launch(300.0)] * 2,
        hand=[launch(200.0)] * 2,
        variant=[launch(400.0)] * 2,
    )
    cells = row(found)
    assert found.best_by_hand() == VARIANT
    assert cells[3].startswith("×4.00")
    assert "`--mode off`" in cells[3]
    assert cells[4].startswith("75 %")


def test_where_nothing_was_proven_nothing_is_said_to_be_chosen() -> None:
    found = Comparison("net", verdict="no_gain", tuning_seconds=60.0)
    found.launches[AS_WRITTEN] = [launch(100.0)]
    cells = row(found)
    assert cells[2] == "none (no_gain)"
    assert cells[5] == "none"
    assert cells[6] == "–"
    assert cells[8] == ""


def test_a_utilisation_that_only_says_that_a_kernel_ran_is_told_apart() -> None:
    found = compared(
        written=[launch(100.0, 20.0), launch(100.0, 30.0)], chosen=[launch(200.0, 90.0, "nvml")]
    )
    assert row(found)[7] == "25 % → 90 % (any kernel)"


def test_the_document_holds_every_launch_and_each_ratio_by_name() -> None:
    found = compared(written=[launch(100.0), None], chosen=[launch(200.0), None])
    document = found.document()
    assert document["launches"][AS_WRITTEN][0]["samples_per_second"] == 100.0
    assert document["launches"][AS_WRITTEN][1] is None
    assert document["ratios"][f"{CHOSEN} / {AS_WRITTEN}"]["value"] == pytest.approx(2.0)
    assert document["ratios"][f"{TRAINING} / {AS_WRITTEN}"] is None


def test_the_table_is_markdown_that_a_document_can_hold() -> None:
    lines = table([compared(written=[launch(100.0)])]).splitlines()
    assert [line.count("|") for line in lines] == [lines[0].count("|")] * 3
    assert set(lines[1]) == {"|", " ", "-"}
