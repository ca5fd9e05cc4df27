"""What single changes are worth is measured against the chosen settings, as time allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from gpurun.pairs.engine import NotLive
from gpurun.records.tuning import LadderRow
from gpurun.tuner.proof.paired_proof import PairResult
from gpurun.tuner.proof.proof_launches import measure_shares
from tests.unit.tuner_trials import trial


def row(knob: str, effect: str = "pipeline", kept: bool = True) -> LadderRow:
    return LadderRow(knob, 1, effect, 100.0, None, None, None, None, kept, "")


CHOSEN = {"loader_workers": 1, "cpu_threads": 1, "autocast": 1}


def measured(
    rows: list[LadderRow], budget: float = 1e6, failure: str = ""
) -> tuple[str, list[dict[str, Any]], dict[str, float | None]]:
    asked: list[dict[str, Any]] = []

    def pair(rest: Mapping[str, Any], chosen: Mapping[str, Any]) -> PairResult:
        assert chosen == CHOSEN
        asked.append(dict(rest))
        if failure:
            raise NotLive(failure)
        gain = 1.0 + 0.1 * len(asked)
        return PairResult(trial(100.0), trial(100.0 * gain), gain, 20.0)

    why = measure_shares(
        rows,
        CHOSEN,
        lambda row: ("cpu_threads",) if row.knob == "loader_workers" else (),
        pair,
        lambda seconds: budget - 20.0 * len(asked) >= seconds,
        10.0,
    )
    return why, asked, {row.knob: row.speedup for row in rows}


def test_each_kept_change_is_left_out_of_the_chosen_settings_with_what_goes_with_it() -> None:
    rows = [row("loader_workers"), row("cpu_threads"), row("autocast", "numerics"),
            row("compile", "numerics", kept=False)]  # fmt: skip
    why, asked, shares = measured(rows)
    assert why == ""
    assert asked == [{"loader_workers": 1, "cpu_threads": 1}, {"autocast": 1}]
    assert shares == {
        "autocast": pytest.approx(1.1), "loader_workers": pytest.approx(1.2),
        "cpu_threads": None, "compile": None,
    }  # fmt: skip


def test_what_there_is_no_time_for_stays_unmeasured() -> None:
    why, asked, shares = measured([row("loader_workers"), row("autocast", "numerics")], 30.0)
    assert why == "the budget ended first"
    assert len(asked) == 1
    assert shares == {"autocast": pytest.approx(1.1), "loader_workers": None}


def test_a_pair_that_could_not_be_live_ends_it() -> None:
    why, asked, shares = measured([row("loader_workers"), row("autocast")], failure="it hung")
    assert (why, len(asked)) == ("it hung", 1)
    assert set(shares.values()) == {None}
