"""What a tuning may claim after proof and guard, and what its ladder says of each change."""

from __future__ import annotations

from typing import Any

from gpurun.tuner.proof.paired_proof import Finalist

from gpurun.records.tuning import GuardVerdict, LadderRow
from gpurun.tuner.proof.decision import APPLY_TRAINING, JudgedFinalist, decide, final_ladder

SOUND = GuardVerdict(accepted=True, loss_deviation=0.0, noise=0.0, reasons=())
BROKEN = GuardVerdict(
    accepted=False, loss_deviation=0.3, noise=0.0, reasons=("the loss deviates by 30 %",)
)
BATCH_64 = {"batch_size": 64, "from": 32, "via": "loader", "learning_rate": "linear"}


def finalist(
    settings: dict[str, Any], *rates: float, guard: GuardVerdict = SOUND
) -> JudgedFinalist:
    finalist = Finalist("chosen", settings)
    finalist.pairs = [(100.0 + 0.1 * i, rate) for i, rate in enumerate(rates)]
    return JudgedFinalist(finalist, guard)


def row(knob: str, value: Any, kept: bool = True) -> LadderRow:
    return LadderRow(
        knob=knob,
        value=value,
        effect="pipeline",
        samples_per_second=200.0,
        speedup=2.0,
        speedup_confidence_interval=None,
        peak_memory_bytes=None,
        loss_deviation=None,
        kept=kept,
        reason="" if kept else "no gain",
    )


def test_a_proven_and_accepted_finalist_wins() -> None:
    decision = decide(finalist({"loader_workers": 4}, 200, 200.3, 200.1), None, False)
    assert decision.verdict == "faster"
    assert decision.winner is not None
    assert decision.winner.finalist.settings == {"loader_workers": 4}


def test_a_finalist_that_the_guard_rejects_never_wins_however_fast() -> None:
    fast = finalist({"autocast": "bf16"}, 900, 901, 902, guard=BROKEN)
    decision = decide(fast, None, False)
    assert decision.verdict == "no_gain"
    assert decision.winner is None
    ladder = final_ladder([row("autocast", "bf16")], decision, {}, None, {})
    assert not ladder[0].kept
    assert "rejected by the loss guard: the loss deviates" in ladder[0].reason


def test_what_makes_the_script_fit_stays_although_nothing_was_proven() -> None:
    needed = {"checkpointing": "blocks"}
    decision = decide(finalist({**needed, "loader_workers": 4}, 100, 100.2), None, False)
    rows = [row("checkpointing", "blocks"), row("loader_workers", 4)]
    kept = [r.kept for r in final_ladder(rows, decision, {}, None, needed)]
    assert kept == [True, False]


def test_a_proof_that_did_not_settle_is_inconclusive() -> None:
    decision = decide(finalist({"loader_workers": 4}, 120, 150), None, False)
    assert decision.verdict == "inconclusive"
    ladder = final_ladder([row("loader_workers", 4)], decision, {}, None, {})
    assert not ladder[0].kept
    assert "budget" in ladder[0].reason


def test_a_larger_batch_is_chosen_only_by_consent() -> None:
    same = finalist({"loader_workers": 4}, 200, 200.3, 200.1)
    larger = finalist({"loader_workers": 4, "batch_size": BATCH_64}, 400, 400.3, 400.1)
    rows = [row("loader_workers", 4), row("batch_size", BATCH_64)]
    refused = decide(same, larger, False)
    assert refused.winner is same
    ladder = final_ladder(rows, refused, {}, larger.finalist, {})
    assert [r.kept for r in ladder] == [True, False]
    assert ladder[1].reason == APPLY_TRAINING
    allowed = decide(same, larger, True)
    assert allowed.winner is larger
    assert all(r.kept for r in final_ladder(rows, allowed, {}, larger.finalist, {}))


def test_a_batch_that_lost_its_proof_is_not_kept_in_the_ladder() -> None:
    same = finalist({"loader_workers": 4}, 200, 200.3, 200.1)
    rows = [row("loader_workers", 4), row("batch_size", BATCH_64)]
    ladder = final_ladder(rows, decide(same, None, True), {}, None, {})
    assert [r.kept for r in ladder] == [True, False]
    assert ladder[1].reason == "no faster in the proof"


def test_an_unsettled_batch_alone_is_inconclusive_where_it_may_be_applied() -> None:
    larger = finalist({"batch_size": BATCH_64}, 120, 150)
    assert decide(None, larger, True).verdict == "inconclusive"
    assert decide(None, larger, False).verdict == "no_gain"


def test_a_finalist_that_failed_in_the_proof_is_out_with_its_own_reason() -> None:
    failed = finalist({"loader_workers": 4}, 200, 200.3, 200.1)
    failed.finalist.failure = "out of memory"
    decision = decide(failed, None, False)
    assert decision.verdict == "no_gain"
    ladder = final_ladder([row("loader_workers", 4)], decision, {}, None, {})
    assert ladder[0].reason == "out of memory"


def test_what_the_search_dropped_keeps_its_reason() -> None:
    winner = decide(finalist({"loader_workers": 4}, 200, 200.3, 200.1), None, False)
    ladder = final_ladder([row("loader_workers", 2, kept=False)], winner, {}, None, {})
    assert ladder[0].reason == "no gain"
