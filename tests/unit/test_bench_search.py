"""The search for a culprit halves, leaves out what stays undecided, and confirms what is left."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from dataclasses import replace

import pytest

from gpurun.bench.bisect.culprit_search import (
    HALVING,
    Measure,
    Outcome,
    SearchPlan,
    Standing,
    answered,
    next_action,
)
from gpurun.records.bench.bisection import BisectedPair, BisectionReport
from gpurun.records.codec import from_json, to_json
from scripts.simulate_bisect import BAR, Bench, History, begun, bisect, drops, simulate

PLAN = SearchPlan()


def shown(found: BisectionReport, losses: dict[tuple[int, int], tuple[float, ...]]) -> Standing:
    """The search goes on: pairs of (commit, against) lose so much by turns, with some scatter."""
    while (wanted := (standing := next_action(found, PLAN)).more) is not None:
        lost = losses[int(wanted.commit), int(wanted.against)]
        found = with_pair(found, wanted, lost[len(found.pairs) % len(lost)])
    return standing


def with_pair(found: BisectionReport, wanted: Measure, lost: float) -> BisectionReport:
    wobble = 1 + 0.002 * (len(found.pairs) % 3 - 1)
    speed = (1 - lost) * wobble
    pair = BisectedPair(
        wanted.commit, wanted.against, wanted.against_first, speed, 1.0, None, (None, None)
    )
    return replace(found, pairs=(*found.pairs, pair))


def asked(found: BisectionReport) -> list[tuple[int, int]]:
    """(commit, against) of the questions, in their order."""
    return list(dict.fromkeys((int(p.commit), int(p.against)) for p in found.pairs))


def quiet(history: History) -> tuple[Standing, BisectionReport]:
    return bisect(Bench(history, "gauss", 0.003, random.Random(5)))


def test_without_pairs_the_ends_of_the_range_are_compared_first() -> None:
    standing = next_action(begun(3), PLAN)
    assert standing.more == Measure("3", "0", against_first=True)
    assert standing.suspects == ("1", "2", "3")


def test_the_middle_of_what_is_left_is_asked_until_one_is_left_and_confirmed() -> None:
    standing, found = quiet(History({11: 0.08}))
    assert (standing.outcome, standing.suspects) == (Outcome.FOUND, ("11",))
    assert asked(found) == [(16, 0), (8, 0), (12, 0), (10, 0), (11, 0), (11, 10)]
    told = answered(found, PLAN)
    assert (told.verdict, told.exit_code, told.culprit) == ("found", 0, "11")
    assert told.slowdown == pytest.approx(0.08, abs=0.01)
    assert told.slowdown_interval is not None
    assert told.slowdown_interval[0] < 0.08 < told.slowdown_interval[1]
    assert told.range_slowdown == pytest.approx(0.08, abs=0.01)


def test_both_orders_of_a_pair_take_turns() -> None:
    _, found = quiet(History({11: 0.08}))
    for question in asked(found):
        own = [p.against_first for p in found.pairs if (int(p.commit), int(p.against)) == question]
        assert own == [n % 2 == 0 for n in range(len(own))]


@pytest.mark.parametrize("law", [pytest.param("gauss", marks=pytest.mark.slow), "live"])
def test_the_culprit_of_a_five_percent_drop_is_right_at_two_percent_noise(law: str) -> None:
    rates = simulate(drops(0.05), law, 0.02, histories=60, seed=7)
    assert rates.right >= BAR
    assert rates.wrong == 0


def test_live_pairs_need_fewer_pairs_than_launches_in_turn() -> None:
    cost = {law: simulate(drops(0.08), law, 0.02, 5, seed=1).pairs for law in ("gauss", "live")}
    assert cost["live"] < cost["gauss"]


def test_pairs_in_turn_and_live_pairs_count_together() -> None:
    found = begun(1)
    for _ in range(2):
        found = with_pair(found, Measure("1", "0", against_first=True), 0.5)
    before = next_action(found, PLAN).lost
    live = replace(found.pairs[0], error=0.01)
    after = next_action(replace(found, pairs=(*found.pairs, live)), PLAN).lost
    assert before.interval is not None
    assert after.interval is not None
    assert after.interval[1] - after.interval[0] < before.interval[1] - before.interval[0]


def test_an_undecided_commit_is_left_out_and_its_neighbour_is_asked() -> None:
    # half of commit 2's pairs lose all of the drop, and half of them nothing
    fast, slow = (0.0,), (0.1,)
    losses = {(4, 0): slow, (2, 0): fast + slow, (1, 0): fast, (3, 0): slow, (3, 1): slow}
    standing = shown(begun(4), losses)
    assert (standing.outcome, standing.suspects) == (Outcome.NARROWED, ("2", "3"))


def test_no_look_of_a_halving_decides_by_chance() -> None:
    plan = HALVING
    assert max(max(plan.levels(look)) for look in plan.looks) < 0.5


def test_commits_that_do_not_build_are_named_with_the_one_that_they_hide_behind() -> None:
    standing, _ = quiet(History({9: 0.08}, frozenset({8, 9, 12})))
    assert (standing.outcome, standing.suspects) == (Outcome.NARROWED, ("8", "9", "10"))


def test_a_skipped_commit_after_the_culprit_hides_nothing() -> None:
    standing, _ = quiet(History({9: 0.08}, frozenset({4, 10, 12})))
    assert (standing.outcome, standing.suspects) == (Outcome.FOUND, ("9",))


def test_a_suspect_that_does_not_lose_against_its_parent_is_not_named() -> None:
    losses = {(4, 0): (0.1,), (2, 0): (0.0,), (3, 0): (0.1,), (3, 2): (0.0,)}
    standing = shown(begun(4), losses)
    assert (standing.outcome, standing.suspects) == (Outcome.NOT_CONFIRMED, ("3",))


def test_the_report_of_an_unconfirmed_suspect_says_where_to_search_on() -> None:
    found = begun(4)
    while (wanted := next_action(found, PLAN).more) is not None:
        fast = (wanted.commit, wanted.against) in (("2", "0"), ("3", "2"))
        found = with_pair(found, wanted, 0.0 if fast else 0.1)
    told = answered(found, PLAN)
    assert (told.verdict, told.exit_code, told.culprit) == ("inconclusive", 3, None)
    assert told.recommendation.startswith("3 does not lose half of the drop against 2:")
    assert told.recommendation.endswith("search for the rest of the drop in 0..2 and 3..4")


def test_an_unconfirmed_suspect_is_told_with_the_commit_that_ran_before_it() -> None:
    found = begun(4)
    left_out = replace(found.commits[1], skipped="does not build")
    found = replace(found, commits=(found.commits[0], left_out, *found.commits[2:]))
    while (wanted := next_action(found, PLAN).more) is not None:
        fast = (wanted.commit, wanted.against) in (("1", "0"), ("3", "1"))
        found = with_pair(found, wanted, 0.0 if fast else 0.1)
    told = answered(found, PLAN).recommendation
    assert told.startswith("3 does not lose half of the drop against 1:")
    assert told.endswith("search for the rest of the drop in 0..1 and 3..4")


def test_many_small_losses_have_no_culprit() -> None:
    standing, _ = quiet(History(dict.fromkeys(range(1, 17), 0.004)))
    assert standing.outcome in (Outcome.NOT_CONFIRMED, Outcome.NARROWED, Outcome.MORE)


def test_of_two_drops_one_is_named_with_its_own_loss_beside_that_of_the_range() -> None:
    standing, found = quiet(History({3: 0.05, 12: 0.1}))
    assert (standing.outcome, standing.suspects) == (Outcome.FOUND, ("12",))
    told = answered(found, PLAN)
    assert (told.slowdown, told.range_slowdown) == pytest.approx((0.1, 0.145), abs=0.01)


def test_a_slow_down_that_is_not_there_is_denied() -> None:
    standing, found = quiet(History({}))
    assert (standing.outcome, standing.suspects) == (Outcome.NO_DROP, ())
    assert len(found.pairs) < 16
    assert answered(found, PLAN).verdict == "no_drop"


def test_pairs_that_are_used_up_leave_the_suspects_that_remain() -> None:
    plan = SearchPlan(max_pairs=20)
    standing, found = bisect(Bench(History({5: 0.08}), "gauss", 0.01, random.Random(5)), plan)
    assert (standing.outcome, standing.more, len(found.pairs)) == (Outcome.MORE, None, 20)
    assert "5" in standing.suspects
    assert len(standing.suspects) < 16
    assert "--max-pairs" in answered(found, plan).recommendation
    assert next_action(found, PLAN).more is not None, "more pairs continue the search"


def test_noise_that_hides_the_drop_is_undecided() -> None:
    standing, _ = bisect(Bench(History({5: 0.08}), "gauss", 0.2, random.Random(5)))
    assert standing.outcome is Outcome.UNDECIDED
    assert len(standing.suspects) == 16


@pytest.mark.parametrize("lost", [0.3, 0.6, 0.99])
def test_a_drop_of_any_size_is_found(lost: float) -> None:
    standing, _ = quiet(History({4: lost}))
    assert standing.suspects == ("4",)
    assert standing.own is not None
    assert standing.own.slowdown == pytest.approx(lost, abs=0.02)


def test_a_range_of_one_commit_needs_only_the_proof_that_it_is_slower() -> None:
    found = begun(1)
    assert shown(found, {(1, 0): (0.1,)}).outcome is Outcome.FOUND


def test_a_search_that_is_read_from_its_file_before_each_pair_goes_the_same_way() -> None:
    history = History({11: 0.05}, frozenset({8, 12}))
    standing, found = bisect(Bench(history, "gauss", 0.02, random.Random(5)))
    again = replace(found, pairs=())
    for pair in found.pairs:
        again = from_json(BisectionReport, json.loads(json.dumps(to_json(again))))
        wanted = next_action(again, PLAN).more
        assert wanted == Measure(pair.commit, pair.against, pair.against_first)
        again = replace(again, pairs=(*again.pairs, pair))
    assert next_action(again, PLAN) == standing


def test_reading_a_search_needs_no_numpy() -> None:
    code = "import gpurun.bench.bisect.culprit_search, sys; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_pairs_of_a_gpu_that_is_held_up_are_believed_less() -> None:
    """Of the same two pairs, which lose 3 %."""
    told = {}
    for loose in (False, True):
        found = begun(3)
        for first in (True, False):
            pair = BisectedPair("3", "0", first, 0.97, 1.0, 0.003, (None, None), loose)
            found = replace(found, pairs=(*found.pairs, pair))
        told[loose] = next_action(found, PLAN).lost.pair_sd
    assert told[False] is not None
    assert told[True] is not None
    assert told[True] > 3 * told[False]
