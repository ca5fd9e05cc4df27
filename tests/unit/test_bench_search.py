"""The search for a culprit names it, or says what it does not know; it loses nothing."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from dataclasses import replace

import pytest

from gpurun.bench.bisect.bisect_state import (
    Bisection,
    Confirm,
    Done,
    Measure,
    Outcome,
    Pair,
    SearchPlan,
)
from gpurun.bench.bisect.culprit_search import next_action
from gpurun.errors import ExitCode, GpurunError
from gpurun.records.codec import from_json, to_json
from scripts.simulate_bisect import (
    OTHERS,
    Bench,
    History,
    bisect,
    halving_wrong,
    one_drop,
    simulate,
)

DROP_AT_40 = History(((40, 0.95),))


def searched(history: History, noise: float = 0.01, plan: SearchPlan | None = None) -> Done:
    return bisect(Bench(history, "gauss", noise, random.Random(5)), plan)[0]


@pytest.mark.parametrize("law", ["gauss", "walk"])
def test_the_culprit_of_a_five_percent_drop_is_right_at_two_percent_noise(law: str) -> None:
    rates = simulate(one_drop(0.05), law, 0.02, histories=20, seed=7)
    assert rates.share("right") == 1
    assert rates.covered >= 0.8


def test_halving_by_one_decision_a_commit_fails_the_same_histories() -> None:
    assert halving_wrong(one_drop(0.05), "gauss", 0.02, 4, histories=40, seed=7) > 0.1


def test_commits_that_do_not_build_are_named_with_the_one_that_they_hide_behind() -> None:
    done = searched(History(((40, 0.95),), frozenset({7, 39, 40, 41, 60})))
    assert done.outcome is Outcome.FOUND
    assert done.suspects[0].commits == ("39", "40", "41", "42")
    assert done.culprit is None, "nothing tells the four apart"


def test_a_slow_down_that_is_not_there_is_denied() -> None:
    done = searched(History(()))
    assert done.outcome is Outcome.NOT_REPRODUCED
    assert done.suspects == ()
    assert done.slowdown is None
    assert done.pairs < 16


def test_many_small_losses_have_no_culprit() -> None:
    done, _ = bisect(Bench(OTHERS["bit by bit"](random.Random(1)), "gauss", 0.01, random.Random(2)))
    assert done.outcome is Outcome.INCONCLUSIVE
    assert done.culprit is None


def test_noise_beyond_the_budget_is_inconclusive_with_the_candidates_that_remain() -> None:
    done = searched(DROP_AT_40, noise=0.08, plan=SearchPlan(max_pairs=30))
    assert done.outcome is Outcome.INCONCLUSIVE
    assert done.pairs == 30
    assert done.noise == pytest.approx(0.08, rel=0.5)
    assert "40" in {commit for suspect in done.suspects for commit in suspect.commits}
    assert sum(s.probability for s in done.suspects) + done.no_drop == pytest.approx(1, abs=0.01)


def test_the_smaller_of_two_drops_does_not_pass_for_all_of_the_loss() -> None:
    done = searched(History(((20, 0.95), (40, 0.9))))
    assert done.outcome is Outcome.FOUND
    assert done.culprit in ("20", "40")
    assert done.another is not None
    other = {"20": "40", "40": "20"}[str(done.culprit)]
    assert other in {commit for suspect in done.another.suspects for commit in suspect.commits}


def test_the_answer_says_what_the_culprit_costs() -> None:
    done = searched(DROP_AT_40, noise=0.005)
    assert done.culprit == "40"
    assert done.another is None
    assert done.slowdown == pytest.approx(0.05, abs=0.01)
    assert done.slowdown_interval is not None
    assert done.slowdown_interval[0] < 0.05 < done.slowdown_interval[1]
    assert done.bad_slowdown == pytest.approx(0.05, abs=0.01)


def test_a_loss_that_was_partly_made_good_shows_in_what_bad_loses() -> None:
    done = searched(History(((20, 0.9), (40, 1.05))))
    assert done.culprit == "20"
    assert done.slowdown == pytest.approx(0.1, abs=0.02)
    assert done.bad_slowdown == pytest.approx(0.055, abs=0.02)


def test_a_search_that_is_read_from_its_file_before_each_pair_goes_the_same_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    history = History(((40, 0.95),), frozenset({32, 39}))
    whole = bisect(Bench(history, "gauss", 0.02, random.Random(5)))

    def after_an_interruption(state: Bisection) -> Measure | Done:
        again = from_json(Bisection, json.loads(json.dumps(to_json(state))))
        assert again == state
        return next_action(again)

    monkeypatch.setattr("scripts.simulate_bisect.next_action", after_an_interruption)
    assert bisect(Bench(history, "gauss", 0.02, random.Random(5))) == whole
    assert set(whole[1].skipped) <= {"32", "39"}


@pytest.mark.parametrize("lost", [0.3, 0.6, 0.99])
def test_a_drop_of_any_size_is_one_drop(lost: float) -> None:
    done = searched(History(((40, 1 - lost),)))
    assert done.culprit == "40"
    assert done.another is None
    assert done.slowdown == pytest.approx(lost, abs=0.02)


def test_a_likely_culprit_is_held_against_its_parent_in_both_orders() -> None:
    _, state = bisect(Bench(DROP_AT_40, "gauss", 0.01, random.Random(5)))
    own = [p.against_first for p in state.pairs if (p.commit, p.against) == ("40", "39")]
    assert len(own) >= SearchPlan().least_pairs
    assert abs(2 * sum(own) - len(own)) <= 1
    before = replace(state, pairs=state.pairs[:-1])
    assert isinstance(next_action(before), Confirm)


def test_a_commit_is_no_culprit_while_its_pairs_with_the_parent_show_nothing() -> None:
    commits = tuple(str(i) for i in range(1, 65))
    state = Bisection("0", commits)
    rng = random.Random(3)
    shown = [("39", "0", 0.0)] * 20 + [("40", "0", 0.05)] * 20 + [("40", "39", 0.0)] * 4
    for number, (commit, against, slowdown) in enumerate(shown):
        noisy = slowdown + rng.gauss(0, 0.015)
        state = state.with_pair(Pair(commit, against, noisy, number % 2 == 0))
    action = next_action(state)
    assert isinstance(action, Confirm)
    assert action.probability > SearchPlan().level


def test_while_a_second_drop_is_open_both_comparisons_are_measured_again() -> None:
    plan = SearchPlan(doubtful=(0.0, 1.0), most_pairs=9)
    done, state = bisect(Bench(DROP_AT_40, "gauss", 0.01, random.Random(5)), plan)
    assert done.culprit == "40"
    measured = [(p.commit, p.against) for p in state.pairs]
    assert measured.count(("64", "0")) >= 9
    assert measured.count(("40", "39")) >= 9


def test_without_pairs_the_ends_of_the_range_are_compared_first() -> None:
    assert next_action(Bisection("a", ("b", "c", "d"))) == Measure("d", "a", True)


def test_a_range_of_one_commit_needs_only_the_proof_that_it_is_slower() -> None:
    state = Bisection("good", ("bad",))
    while not isinstance(action := next_action(state), Done):
        pair = Pair(action.commit, action.against, -math.log(0.9), action.against_first)
        state = state.with_pair(pair)
    assert action.culprit == "bad"
    assert action.pairs == SearchPlan().least_pairs


def test_an_end_of_the_range_that_does_not_run_is_no_regression() -> None:
    for end in ("a", "c"):
        with pytest.raises(GpurunError) as caught:
            Bisection("a", ("b", "c")).without(end)
        assert caught.value.code is ExitCode.BENCHMARK_FAILED


def test_a_range_with_a_commit_twice_is_refused() -> None:
    for commits in ((), ("b", "b"), ("a", "b")):
        with pytest.raises(ValueError, match="different commits"):
            Bisection("a", commits)


def test_reading_a_search_needs_no_numpy() -> None:
    code = "import gpurun.bench.bisect.culprit_search, sys; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
