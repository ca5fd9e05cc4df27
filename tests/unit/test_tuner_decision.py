"""What a tuning may claim after proof and guard, and why settings are left out."""

from __future__ import annotations

from typing import Any

import pytest

from gpurun.records.tuning import GuardVerdict
from gpurun.tuner.proof.decision import JudgedFinalist, decide, reasons_left_out
from gpurun.tuner.proof.finalist import Finalist

SOUND = GuardVerdict(accepted=True, loss_deviation=0.0, noise=0.0, reasons=())
BROKEN = GuardVerdict(
    accepted=False, loss_deviation=0.3, noise=0.0, reasons=("the loss deviates by 30 %",)
)
WORKERS = {"loader_workers": 4}
BATCH_64 = {"batch_size": {"batch_size": 64, "from": 32, "via": "loader"}}
PROVEN, UNSETTLED = (200, 200.3, 200.1), (120, 150)


def finalist(
    settings: dict[str, Any], *rates: float, guard: GuardVerdict = SOUND
) -> JudgedFinalist:
    finalist = Finalist("chosen", settings)
    finalist.pairs = [(100.0 + 0.1 * i, rate) for i, rate in enumerate(rates)]
    return JudgedFinalist(finalist, guard)


def failed(settings: dict[str, Any], reason: str) -> JudgedFinalist:
    found = finalist(settings, *PROVEN)
    found.finalist.failure = reason
    return found


def test_a_proven_and_accepted_finalist_wins_with_all_its_settings() -> None:
    decision = decide(finalist(WORKERS, *PROVEN), None, False)
    assert decision.verdict == "faster"
    assert decision.winner is not None
    assert decision.winner.finalist.settings == WORKERS
    assert reasons_left_out(WORKERS, decision, {}) == {}


@pytest.mark.parametrize(
    ("judged", "verdict", "reason"),
    [
        (
            finalist(WORKERS, *PROVEN, guard=BROKEN),
            "no_gain",
            "rejected by the loss guard: the loss deviates by 30 %",
        ),
        (failed(WORKERS, "out of memory"), "no_gain", "out of memory"),
        (finalist(WORKERS, *UNSETTLED), "inconclusive", "not proven: the budget ended first"),
        (finalist(WORKERS, 100, 100, 100), "no_gain", "the proof does not confirm it"),
    ],
)
def test_what_does_not_win_is_left_out_with_its_own_reason(
    judged: JudgedFinalist, verdict: str, reason: str
) -> None:
    decision = decide(judged, None, False)
    assert (decision.verdict, decision.winner) == (verdict, None)
    assert reasons_left_out(WORKERS, decision, {}) == {"loader_workers": reason}


def test_what_speaks_against_one_setting_is_not_said_of_the_others() -> None:
    decision = decide(finalist(WORKERS, *PROVEN), None, False)
    kept = {**WORKERS, "tf32": True, "compile": "default"}
    left_out = reasons_left_out(kept, decision, {"tf32": "it trains otherwise"})
    assert left_out["tf32"] == "it trains otherwise"
    assert set(left_out) == {"tf32", "compile"}


def test_a_larger_batch_is_chosen_only_by_consent() -> None:
    same = finalist(WORKERS, *PROVEN)
    larger = finalist({**WORKERS, **BATCH_64}, 400, 400.3, 400.1)
    assert decide(same, larger, False).winner is same
    assert decide(same, larger, True).winner is larger


def test_a_batch_no_faster_than_the_same_training_is_not_chosen() -> None:
    same = finalist(WORKERS, *PROVEN)
    larger = finalist({**WORKERS, **BATCH_64}, 150, 150.3, 150.1)
    assert decide(same, larger, True).winner is same


def test_an_unsettled_batch_alone_is_inconclusive_where_it_may_be_applied() -> None:
    larger = finalist(BATCH_64, *UNSETTLED)
    assert decide(None, larger, True).verdict == "inconclusive"
    assert decide(None, larger, False).verdict == "no_gain"
