"""`bench --compare REF --culprit`: what a search adds to the document of a regression."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.bisect.bisect_state import Done, Pair, SearchPlan, fresh_state, state_file
from gpurun.bench.bisect.commit_range import commit_range
from gpurun.bench.bisect.culprit_decision import next_action
from gpurun.bench.compare.compare_commits import CompareRequest
from gpurun.bench.trees.git import open_repository
from gpurun.commands.bench.search_culprit import with_culprit
from gpurun.records.bench.bisection import BisectedPair
from gpurun.records.bench.comparison import Comparison
from gpurun.stats.gate import GatePlan
from gpurun.trials.signal_guard import SignalGuard
from tests.repositories import commit, git, new_repository
from tests.unit.bench_launches import BENCHMARK
from tests.unit.test_bench_document import document, found

HALF = math.log(2)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four commits on main, v0 to v3."""
    made = new_repository(tmp_path / "project")
    for number in range(4):
        commit(made, {"train.py": f"# {number}\n", ".gitignore": ".gpurun/\n"}, f"Change {number}")
        git(made, "tag", f"v{number}")
    return made


def regression(good: str, bad: str, dirty: bool = False) -> Comparison:
    one = document(found([800.0, 801.0, 799.0, 800.5]), commits=3)
    current = replace(one.current, commit=bad, dirty=dirty)
    return replace(one, baseline=replace(one.baseline, commit=good), current=current)


def asked(folder: Path, lines: list[str]) -> CompareRequest:
    return CompareRequest(
        "main", folder / ".gpurun", GatePlan(), math.inf, False, print, lines.append
    )


def searched_before(
    folder: Path, benchmark: Benchmark, good: str, bad: str, culprit: str | None
) -> None:
    """Leave the file of a search of the range in which `culprit` lost half."""
    repository = open_repository(folder)
    line = commit_range(repository, good, bad)
    slow = line.ids[line.ids.index(culprit) :] if culprit is not None else ()
    state = fresh_state(line, SearchPlan())
    while not isinstance(action := next_action(state.search), Done):
        lost = (action.commit in slow) - (action.against in slow)
        rates = (1000.0 * 0.5 ** (action.commit in slow), 1000.0 * 0.5 ** (action.against in slow))
        pair = Pair(action.commit, action.against, lost * HALF, action.against_first)
        shown = BisectedPair(
            action.commit, action.against, action.against_first, *rates, lost / 2, (None, None)
        )
        state = replace(state, search=state.search.with_pair(pair), pairs=(*state.pairs, shown))
    with state_file(folder / ".gpurun", repository, benchmark, line, print) as file:
        file.write(state)


def commits(folder: Path) -> list[str]:
    return [git(folder, "rev-parse", f"v{number}") for number in range(4)]


def test_the_culprit_of_a_regression_is_named_with_its_author(folder: Path) -> None:
    benchmark, lines = replace(BENCHMARK, folder=folder), list[str]()
    good, _, culprit, bad = commits(folder)
    searched_before(folder, benchmark, good, bad, culprit)
    one = with_culprit(regression(good, bad), benchmark, asked(folder, lines), SignalGuard())
    assert one.likely_culprit_commit == culprit
    assert one.recommendation == f'look at commit {culprit[:9]} "Change 2" by a'
    assert (one.verdict, one.exit_code) == ("regression", 1)
    assert lines[0] == f"search for the culprit in {good[:9]}..{bad[:9]}"
    assert one.notes[-1].startswith("search for the culprit: FOUND")


def test_where_the_commits_lose_nothing_the_uncommitted_changes_are_left(folder: Path) -> None:
    benchmark = replace(BENCHMARK, folder=folder)
    good, *_, bad = commits(folder)
    searched_before(folder, benchmark, good, bad, None)
    before = regression(good, bad, dirty=True)
    one = with_culprit(before, benchmark, asked(folder, []), SignalGuard())
    assert one.likely_culprit_commit is None
    assert one.recommendation.startswith("look at the uncommitted changes")


def test_where_head_is_a_merge_the_branch_is_searched(folder: Path) -> None:
    benchmark, lines = replace(BENCHMARK, folder=folder), list[str]()
    good, _, culprit, bad = commits(folder)
    git(folder, "checkout", "-q", "-b", "target", good)
    target = commit(folder, {"other.txt": "1"}, "meanwhile")
    git(folder, "merge", "-q", "--no-ff", "-m", "merge", "main")
    searched_before(folder, benchmark, good, bad, culprit)
    merge = git(folder, "rev-parse", "HEAD")
    before = regression(target, merge)
    one = with_culprit(before, benchmark, asked(folder, lines), SignalGuard())
    assert lines[0] == f"search for the culprit in {good[:9]}..{bad[:9]}"
    assert one.likely_culprit_commit == culprit


def test_what_keeps_the_search_from_an_answer_is_a_note(folder: Path) -> None:
    benchmark = replace(BENCHMARK, folder=folder)
    good, *_, bad = commits(folder)
    before = regression(bad, good)
    one = with_culprit(before, benchmark, asked(folder, []), SignalGuard())
    assert one == replace(before, notes=one.notes)
    assert "is not an ancestor of" in one.notes[-1]

    memory = replace(before.metrics[0], metric="peak_memory")
    grown = replace(before, metrics=(memory,))
    one = with_culprit(grown, benchmark, asked(folder, []), SignalGuard())
    assert one.notes == ("no search for the culprit: it looks for lost throughput only",)


def test_a_comparison_that_passed_is_left_as_it_is(folder: Path) -> None:
    one = document(found([1000.0] * 4))
    assert with_culprit(one, BENCHMARK, asked(folder, []), SignalGuard()) == one
