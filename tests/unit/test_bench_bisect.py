"""The course of `gpurun bench bisect`: what is launched, skipped, refused, kept and said."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpurun.bench.benchmark_launcher import Launch, Launcher
from gpurun.bench.bisect.bisect_document import Findings, bisection_report
from gpurun.bench.bisect.bisect_runner import BisectRunner, so_far
from gpurun.bench.bisect.bisect_state import (
    SearchPlan,
    SearchState,
    StateFile,
    fresh_state,
    state_file,
)
from gpurun.bench.bisect.commit_launches import CommitLauncher, TreePool
from gpurun.bench.bisect.commit_range import CommitRange
from gpurun.bench.compare.pair_runner import MOST_AGAIN
from gpurun.bench.trees.git import Repository
from gpurun.bench.trees.installed_packages import Tree
from gpurun.bench.trees.prepared_sides import Side, Sides
from gpurun.bench.trees.setup_command import SetupFailed
from gpurun.errors import ExitCode, GpurunError
from gpurun.isolation.isolation_mode import Mode
from gpurun.records.bench.benchmark import BenchmarkPurpose, BenchmarkRecord
from gpurun.records.bench.bisection import BisectedCommit, BisectionReport
from gpurun.records.codec import from_json, to_json
from gpurun.records.spec import StopRule
from gpurun.report.bisection_text import bisection_lines, bisection_markdown
from gpurun.trials.signal_guard import SignalGuard
from tests.unit.bench_launches import BENCHMARK, device, launch

COMMITS = 16
CULPRIT = 9


def name(number: int) -> str:
    """The id of a commit; GOOD is 0."""
    return f"{number:02}" * 20


def described(number: int) -> BisectedCommit:
    return BisectedCommit(name(number), f"Change {number}", "An Author", "2026-01-01", False)


LINE = CommitRange(described(0), tuple(described(number) for number in range(1, COMMITS + 1)))


class Machine(Launcher):
    """Gives back what launches of each commit come to: a tenth slower from the culprit on.

    `odd`: how launches of a commit differ from that, by its number. `turns`: what was launched, a
    first launch with a star.
    """

    def __init__(self, folder: Path, odd: dict[int, dict[str, Any]]) -> None:
        super().__init__(BENCHMARK, folder, Mode.IN_PLACE, print)
        self.odd = odd
        self.turns: list[str] = []

    def run(self, start: Side, rule: StopRule, *, first: bool = False) -> Launch:
        number = int(start.name[:2])
        self.turns.append(f"{number}{'*' if first else ''}")
        wobble = 1 + 0.01 * ((len(self.turns) * 7) % 5 - 2) / 2
        rate = (900.0 if number >= CULPRIT else 1000.0) * wobble
        return launch(start.name, **{"rate": rate, **self.odd.get(number, {})})


class HistoryCourse:
    """One call of the command, without git and without processes."""

    def __init__(
        self,
        folder: Path,
        odd: dict[int, dict[str, Any]] | None = None,
        unbuilt: tuple[int, ...] = (),
        state: SearchState | None = None,
        **more: Any,
    ) -> None:
        self.alive: list[str] = []
        self.most_alive = 0
        self.unbuilt = {name(number) for number in unbuilt}
        self.lines: list[str] = []
        self.records: list[BenchmarkRecord] = []
        self.file = StateFile(folder / "state.json", state)
        self.machine = Machine(folder, odd or {})
        interruption = SignalGuard()
        pool = TreePool(self.tree, self.machine.forget)
        measuring = CommitLauncher(BENCHMARK, self.machine, pool, interruption, self.lines.append)
        self.searching = BisectRunner(
            LINE,
            self.file,
            state or fresh_state(LINE, SearchPlan()),
            measuring,
            self.machine,
            self.records.append,
            self.lines.append,
            interruption,
            **more,
        )

    @contextmanager
    def tree(self, commit: str) -> Iterator[Sides]:
        if commit in self.unbuilt:
            raise SetupFailed(commit[:9], "setup failed: no compiler", Path("/log"))
        tree = Tree(Path("/trees") / commit)
        side = Side(commit[:9], commit, tree, tree.root, Path("/usr/bin/python"), {})
        self.alive.append(commit)
        self.most_alive = max(self.most_alive, len(self.alive))
        try:
            yield Sides(side, side, Tree(Path("/project")))
        finally:
            self.alive.remove(commit)

    def run(self) -> BisectionReport:
        self.searching.run()
        return self.report()

    def report(self) -> BisectionReport:
        state = self.searching.state
        found = Findings(LINE, state, so_far(state), self.searching.ended)
        return bisection_report(BENCHMARK, found, state.search.plan)


def test_the_culprit_is_found_with_its_loss_and_every_launch_is_kept(tmp_path: Path) -> None:
    course = HistoryCourse(tmp_path)
    found = course.run()
    assert (found.verdict, found.exit_code, found.culprit) == ("found", 0, name(CULPRIT))
    assert found.slowdown == pytest.approx(0.1, abs=0.02)
    interval = found.slowdown_confidence_interval
    assert interval is not None
    assert interval[0] < found.slowdown < interval[1]
    assert found.suspects[0].probability > 0.999
    assert len(course.records) == 2 * len(found.pairs)
    assert {record.purpose for record in course.records} == {BenchmarkPurpose.BISECT}
    kept = {record.id: record.commit for record in course.records}
    for pair in found.pairs:
        assert [kept[str(one)] for one in pair.records] == [pair.against, pair.commit]
    assert any(
        "Change 9" in line and "gpurun compares it with its parent" in line for line in course.lines
    )


def test_few_trees_are_there_at_once_and_each_is_warmed_up_first(tmp_path: Path) -> None:
    course = HistoryCourse(tmp_path)
    course.run()
    assert course.most_alive <= 4
    turns = course.machine.turns
    assert turns[:3] == ["0*", "16*", "0"]
    for number in {turn for turn in turns if "*" not in turn}:
        assert turns.index(f"{number}*") < turns.index(number)


def test_a_tree_that_the_next_pair_wants_again_is_not_made_again(tmp_path: Path) -> None:
    course = HistoryCourse(tmp_path)
    found = course.run()
    first = [turn for turn in course.machine.turns if "*" in turn]
    assert len(first) < len(found.pairs)
    assert first.count("0*") == 1


def test_commits_that_do_not_build_or_crash_are_skipped_with_their_reason(tmp_path: Path) -> None:
    crash = {"error": "ImportError: half a change", "status": "failed"}
    course = HistoryCourse(tmp_path, odd={8: crash}, unbuilt=(6,))
    found = course.run()
    assert {one.commit: one.skipped for one in found.skipped} == {
        name(6): "setup failed: no compiler",
        name(8): "ImportError: half a change",
    }
    assert found.verdict == "narrowed"
    assert found.exit_code == 3
    assert found.culprit is None
    assert found.suspects[0].commits == (name(8), name(9))
    assert [r.status for r in course.records if r.commit == name(8)] == ["failed"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"batch_size": 16.0}, "its workload differs: the batch size is 16, and 8 at GOOD"),
        ({"parameters": 7}, "its workload differs: the number of parameters is 7, and 100 at GOOD"),
        ({"status": "completed", "steps": 30}, "it ends after 30 steps, but other commits take 60"),
    ],
)
def test_unequal_work_inside_the_range_is_skipped_by_name(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    found = HistoryCourse(tmp_path, odd={8: changes}).run()
    assert [one.commit for one in found.skipped] == [name(8)]
    assert (found.skipped[0].skipped or "").startswith(reason)


def test_unequal_work_of_the_ends_is_refused_by_name(tmp_path: Path) -> None:
    course = HistoryCourse(tmp_path, odd={16: {"batch_size": 16.0}})
    with pytest.raises(GpurunError) as raised:
        course.run()
    assert raised.value.code is ExitCode.NO_BASELINE
    assert "the batch size is 16 at 161616161, and 8 at 000000000" in raised.value.what


@pytest.mark.parametrize("end", [0, 16])
def test_an_end_that_crashes_ends_the_search_by_name(tmp_path: Path, end: int) -> None:
    course = HistoryCourse(tmp_path, odd={end: {"error": "ValueError: no", "status": "failed"}})
    with pytest.raises(GpurunError) as raised:
        course.run()
    assert raised.value.code is ExitCode.BENCHMARK_FAILED
    which = "BAD" if end else "GOOD"
    assert raised.value.what == f"{which} ({name(end)[:9]}) cannot be measured: ValueError: no"


def test_a_range_without_a_drop_names_nobody(tmp_path: Path) -> None:
    same = {number: {"rate": 1000.0 + number % 3} for number in range(17)}
    found = HistoryCourse(tmp_path, odd=same).run()
    assert (found.verdict, found.exit_code, found.suspects) == ("no_drop", 3, ())
    assert found.slowdown is None
    assert found.no_drop_probability is not None
    assert found.no_drop_probability > 0.999


def test_time_that_is_up_leaves_what_is_left_of_the_suspects(tmp_path: Path) -> None:
    found = HistoryCourse(tmp_path, deadline=time.monotonic()).run()
    assert (found.verdict, found.exit_code, found.pairs) == ("inconclusive", 3, ())
    assert "more --budget" in found.recommendation


def test_a_disturbed_pair_is_launched_again(tmp_path: Path) -> None:
    course = HistoryCourse(tmp_path, odd={CULPRIT: {"devices": (device("thermal"),)}})
    found = course.run()
    assert found.culprit == name(CULPRIT)
    told = [line for line in course.lines if line.startswith("a pair is launched again")]
    assert told == ["a pair is launched again: the GPU was throttled in the 090909090 half only "
                    "(thermal)"] * MOST_AGAIN  # fmt: skip


def test_a_search_that_was_killed_after_any_pair_goes_on_from_its_file(tmp_path: Path) -> None:
    whole = HistoryCourse(tmp_path / "whole")
    pairs = len(whole.run().pairs)
    for number in (1, pairs // 2, pairs - 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        before = HistoryCourse(folder)
        plan = SearchPlan(max_pairs=number)
        state = before.searching.state
        before.searching.state = replace(state, search=replace(state.search, plan=plan))
        before.run()
        kept = from_json(SearchState, json.loads(before.file.path.read_text()))
        kept = replace(kept, search=replace(kept.search, plan=SearchPlan()))
        after = HistoryCourse(folder, state=kept)
        found = after.run()
        assert found.culprit == name(CULPRIT)
        assert found.pairs[:number] == before.report().pairs
        assert found.seconds >= kept.seconds


def test_a_search_does_not_go_on_on_another_device(tmp_path: Path) -> None:
    before = HistoryCourse(tmp_path)
    before.run()
    state = before.searching.state
    assert state.terms is not None
    elsewhere = replace(state, terms=replace(state.terms, devices="H200"))
    short = replace(elsewhere.search, pairs=elsewhere.search.pairs[:2])
    after = HistoryCourse(tmp_path, state=replace(elsewhere, search=short, pairs=state.pairs[:2]))
    with pytest.raises(
        GpurunError, match="this search began on H200, and this machine has"
    ) as raised:
        after.run()
    assert "--fresh" in raised.value.todo


REPOSITORY = Repository(Path("/project"), Path("/project/.git"))


def test_a_second_search_of_the_same_range_is_refused_and_another_range_is_not(
    tmp_path: Path,
) -> None:
    other = CommitRange(LINE.good, LINE.commits[:-1])
    with state_file(tmp_path, REPOSITORY, BENCHMARK, LINE, print):
        second = state_file(tmp_path, REPOSITORY, BENCHMARK, LINE, print)
        with pytest.raises(GpurunError, match="running already by process"), second:
            pass
        with state_file(tmp_path, REPOSITORY, BENCHMARK, other, print) as file:
            assert file.state is None
    with state_file(tmp_path, REPOSITORY, BENCHMARK, LINE, print):
        pass


def test_a_search_whose_file_is_unreadable_begins_anew_and_keeps_it(tmp_path: Path) -> None:
    lines: list[str] = []
    state = fresh_state(LINE, SearchPlan())
    with state_file(tmp_path, REPOSITORY, BENCHMARK, LINE, lines.append) as file:
        file.write(state)
    with state_file(tmp_path, REPOSITORY, BENCHMARK, LINE, lines.append) as file:
        assert file.state == state
        file.path.write_text('{"search":')
    with state_file(tmp_path, REPOSITORY, BENCHMARK, LINE, lines.append) as file:
        assert file.state is None
        assert file.path.with_suffix(".unreadable").read_text() == '{"search":'
    assert len(lines) == 1
    assert lines[0].startswith("the search starts again")


def test_a_fresh_search_forgets_the_earlier_one(tmp_path: Path) -> None:
    with state_file(tmp_path, REPOSITORY, BENCHMARK, LINE, print) as file:
        file.write(fresh_state(LINE, SearchPlan()))
    with state_file(tmp_path, REPOSITORY, BENCHMARK, LINE, print, fresh=True) as file:
        assert file.state is None


def test_the_report_names_the_culprit_its_author_and_what_is_skipped(tmp_path: Path) -> None:
    found = HistoryCourse(tmp_path, unbuilt=(6,)).run()
    assert from_json(BisectionReport, json.loads(json.dumps(to_json(found)))) == found
    lines = bisection_lines(found)
    assert lines[0] == (
        f'FOUND train|er: 090909090 "Change 9" by An Author ({len(found.pairs)} pairs)'
    )
    assert lines[1].startswith("  probability > 99.9 %, throughput −9.9 % (interval −1")
    assert '  skipped 060606060 "Change 6" by An Author: setup failed: no compiler' in lines
    assert lines[-1] == "see git show 090909090"
    text = bisection_markdown(found)
    assert text.startswith("### gpurun bench bisect: FOUND train\\|er: 090909090")


def test_the_report_of_a_search_that_is_not_over_lists_who_is_left(tmp_path: Path) -> None:
    course = HistoryCourse(tmp_path)
    state = course.searching.state
    plan = SearchPlan(max_pairs=2)
    course.searching.state = replace(state, search=replace(state.search, plan=plan))
    found = course.run()
    lines = bisection_lines(found)
    assert lines[0].startswith("INCONCLUSIVE train|er: ")
    assert any(line.startswith("  suspect ") for line in lines)
    assert "--max-pairs" in lines[-1]
    assert "| suspect | subject | author | probability |" in bisection_markdown(found)
