"""The course of `gpurun bench bisect`: what is launched, skipped, refused, kept and said."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpurun.bench.benchmark_launcher import Launch, Launcher, warm_up_rule
from gpurun.bench.bisect import bisect_runner
from gpurun.bench.bisect.bisect_runner import BisectRequest, BisectRunner
from gpurun.bench.bisect.commit_launches import CommitLauncher
from gpurun.bench.trees.git import Repository
from gpurun.bench.trees.installed_packages import Tree
from gpurun.bench.trees.prepared_sides import Side, Sides
from gpurun.errors import ExitCode, GpurunError
from gpurun.isolation.isolation_mode import Mode
from gpurun.pairs.engine import MOST_AGAIN, PairOutcome
from gpurun.pairs.turn_ratio import TurnRatio
from gpurun.records.bench.benchmark import BenchmarkPurpose, BenchmarkRecord
from gpurun.records.bench.bisection import BisectedCommit, BisectionReport
from gpurun.records.codec import from_json, to_json
from gpurun.records.failure import Failure, FailureKind
from gpurun.records.result import HostUse
from gpurun.records.spec import StopRule
from gpurun.report.bench_text import bisection_lines, bisection_markdown
from gpurun.trials.signal_guard import SignalGuard
from tests.unit.bench_launches import BENCHMARK, device, launch, on_gpu

COMMITS = 16
CULPRIT = 9


def name(number: int) -> str:
    """The id of a commit; GOOD is 0."""
    return f"{number:02}" * 20


def described(number: int) -> BisectedCommit:
    return BisectedCommit(name(number), f"Change {number}", "An Author", "2026-01-01", False)


LINE = tuple(described(number) for number in range(COMMITS + 1))


class Machine(Launcher):
    """Gives back what launches of each commit come to: a tenth slower from the culprit on.

    `odd`: how launches of a commit differ from that, by its number. `turns`: what was launched, a
    first launch with a star.
    """

    def __init__(self, folder: Path, odd: dict[int, dict[str, Any]]) -> None:
        super().__init__(BENCHMARK, folder, Mode.IN_PLACE, print)
        self.odd = odd
        self.turns: list[str] = []
        self.rules: list[StopRule] = []
        self.crashes: list[str] = []
        """Launches that fail by chance, once each."""

    def run(self, start: Side, rule: StopRule, *, first: bool = False) -> Launch:
        number = int(start.name[:2])
        self.turns.append(f"{number}{'*' if first else ''}")
        self.rules.append(rule)
        wobble = 1 + 0.01 * ((len(self.turns) * 7) % 5 - 2) / 2
        rate = (900.0 if number >= CULPRIT else 1000.0) * wobble
        changes = {"rate": rate, **self.odd.get(number, {})}
        if self.turns[-1] in self.crashes:
            self.crashes.remove(self.turns[-1])
            changes |= {"error": "OSError: no route to host", "status": "failed"}
        made = launch(start.name, **changes)
        return replace(made, start=start)


def request(home: Path, **changes: Any) -> BisectRequest:
    """A request for a search that keeps and tells nothing."""
    asked = BisectRequest(
        "", "", home, None, math.inf, False, False, lambda r: None, lambda t: None
    )
    return replace(asked, **changes)


class HistoryCourse:
    """One call of the command, without git and without processes."""

    def __init__(
        self,
        folder: Path,
        odd: dict[int, dict[str, Any]] | None = None,
        unbuilt: tuple[int, ...] = (),
        found: BisectionReport | None = None,
        deadline: float = math.inf,
        max_pairs: int | None = None,
        machine: type[Machine] = Machine,
    ) -> None:
        self.alive: list[str] = []
        self.most_alive = 0
        self.unbuilt = {name(number) for number in unbuilt}
        self.lines: list[str] = []
        self.records: list[BenchmarkRecord] = []
        self.path = folder / "state.json"
        self.machine = machine(folder, odd or {})
        guard, tell = SignalGuard(), self.lines.append
        asked = request(folder, deadline=deadline, max_pairs=max_pairs)
        asked = replace(asked, keep=self.records.append, tell=tell)
        self.runner = BisectRunner(BENCHMARK, asked, guard)
        begun = replace(self.runner.found, good=LINE[0], commits=LINE[1:])
        self.runner.found = found or begun
        self.measuring = CommitLauncher(LINE[0].commit, self.machine, self.tree, guard, tell)

    @contextmanager
    def tree(self, commit: str) -> Iterator[Sides]:
        if commit in self.unbuilt:
            raise GpurunError("setup failed: no compiler", "see /log", ExitCode.BENCHMARK_FAILED)
        tree = Tree(Path("/trees") / commit)
        side = Side(commit[:9], commit, tree, tree.root, Path("/usr/bin/python"), {})
        self.alive.append(commit)
        self.most_alive = max(self.most_alive, len(self.alive))
        try:
            yield Sides(side, side, Tree(Path("/project")))
        finally:
            self.alive.remove(commit)

    def run(self) -> BisectionReport:
        self.runner.take_pairs(self.measuring, self.path)
        return self.runner.document(None)


def test_the_culprit_is_found_with_its_loss_and_every_launch_is_kept(tmp_path: Path) -> None:
    course = HistoryCourse(tmp_path)
    found = course.run()
    assert (found.verdict, found.exit_code, found.culprit) == ("found", 0, name(CULPRIT))
    assert found.slowdown == pytest.approx(0.1, abs=0.02)
    interval = found.slowdown_interval
    assert interval is not None
    assert interval[0] < found.slowdown < interval[1]
    assert len(course.records) == 2 * len(found.pairs)
    assert {record.purpose for record in course.records} == {BenchmarkPurpose.BISECT}
    kept = {record.id: record.commit for record in course.records}
    for pair in found.pairs:
        assert [kept[str(one)] for one in pair.records] == [pair.against, pair.commit]
    assert "1 suspect left" in course.lines


def test_few_trees_are_there_at_once_and_each_is_warmed_up_first(tmp_path: Path) -> None:
    course = HistoryCourse(tmp_path)
    course.run()
    assert course.most_alive <= 3
    turns = course.machine.turns
    assert turns[:3] == ["0*", "16*", "0"]
    for number in {turn for turn in turns if "*" not in turn}:
        assert turns.index(f"{number}*") < turns.index(number)


def test_a_tree_is_warmed_up_as_long_as_in_a_comparison(tmp_path: Path) -> None:
    course = HistoryCourse(tmp_path, max_pairs=1)
    course.machine.benchmark = replace(BENCHMARK, steps=None)
    course.run()
    assert course.machine.rules[:2] == [warm_up_rule(None)] * 2


def test_a_tree_that_the_next_pair_wants_again_is_not_made_again(tmp_path: Path) -> None:
    course = HistoryCourse(tmp_path)
    found = course.run()
    first = [turn for turn in course.machine.turns if "*" in turn]
    assert len(first) < len(found.pairs)
    assert first.count("0*") == 1


def test_commits_that_do_not_build_or_crash_are_skipped_with_their_reason(tmp_path: Path) -> None:
    crash = {"error": "ImportError: half a change", "status": "failed"}
    course = HistoryCourse(tmp_path, odd={8: crash}, unbuilt=(7,))
    found = course.run()
    assert {one.commit: one.skipped for one in found.skipped} == {
        name(7): "setup failed: no compiler",
        name(8): "ImportError: half a change",
    }
    assert found.verdict == "narrowed"
    assert found.exit_code == 3
    assert found.culprit is None
    assert found.suspects == (name(7), name(8), name(9))
    assert [r.status for r in course.records if r.commit == name(8)] == ["failed"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"batch_size": 16.0}, "its workload differs: the batch size is 16, and 8 at GOOD"),
        ({"parameters": 7}, "its workload differs: the number of parameters is 7, and 100 at GOOD"),
        (
            {"status": "completed", "steps": 30},
            "its workload differs: it ends after 30 steps, and GOOD takes 60",
        ),
        ({"step_time_ms": None}, "no step was measured"),
    ],
)
def test_unequal_or_unmeasured_work_inside_the_range_is_skipped_by_name(
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
    assert raised.value.what == (
        "BAD (161616161) cannot be measured: its workload differs: the batch size is 16, and 8 at "
        "GOOD"
    )
    assert "search on one side of the commit that changed it" in raised.value.todo


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
    assert found.range_slowdown == pytest.approx(0.0, abs=0.01)


def test_time_that_is_up_leaves_what_is_left_of_the_suspects(tmp_path: Path) -> None:
    found = HistoryCourse(tmp_path, deadline=time.monotonic()).run()
    assert (found.verdict, found.exit_code, found.pairs) == ("inconclusive", 3, ())
    assert "more --budget" in found.recommendation


def test_a_disturbed_pair_is_measured_again(tmp_path: Path) -> None:
    course = HistoryCourse(tmp_path, odd={CULPRIT: {"devices": (device("thermal"),)}})
    found = course.run()
    assert found.culprit == name(CULPRIT)
    told = [line for line in course.lines if " is measured again: " in line]
    number = 1 + next(n for n, pair in enumerate(found.pairs) if pair.commit == name(CULPRIT))
    assert told == [f"pair {number} is measured again: the GPU was throttled in the 090909090 half "
                    "only (thermal)"]  # fmt: skip
    launched = [turn for turn in course.machine.turns if "*" not in turn]
    assert len(launched) == 2 * (len(found.pairs) + MOST_AGAIN)


def test_a_pair_in_the_file_says_whether_a_gpu_was_held_up(tmp_path: Path) -> None:
    course = HistoryCourse(tmp_path, odd={CULPRIT: on_gpu(30.0)}, max_pairs=40)
    found = course.run()
    loose = [pair.loose for pair in found.pairs]
    assert loose == [name(CULPRIT) in (pair.commit, pair.against) for pair in found.pairs]
    assert any(loose)


def test_no_disturbed_pair_is_measured_again_after_the_deadline(tmp_path: Path) -> None:
    course = HistoryCourse(tmp_path, odd={16: {"devices": (device("thermal"),)}})
    launches = course.machine.run

    def run(*words: Any, **named: Any) -> Launch:
        if course.machine.turns == ["0*", "16*", "0"]:
            course.measuring.deadline = time.monotonic()
        return launches(*words, **named)

    course.machine.run = run  # type: ignore[method-assign]
    course.runner.plan = replace(course.runner.plan, max_pairs=1)
    assert len(course.run().pairs) == 1
    assert course.machine.turns == ["0*", "16*", "0", "16"]


class LiveMachine(Machine):
    """Live pairs of which those with a commit in `apart` fail; alone all launches end well."""

    apart: tuple[int, ...] = ()
    pairs = 0

    def __init__(self, folder: Path, odd: dict[int, dict[str, Any]]) -> None:
        super().__init__(folder, odd)
        self.mode = self.trials.mode = Mode.OVERLAY

    def run_pair(self, starts: tuple[Side, Side], rule: StopRule) -> PairOutcome[Launch]:
        self.pairs += 1
        first, second = (self.run(start, rule) for start in starts)
        rates = [one.steps_per_second or math.nan for one in (first, second)]
        if {int(start.name[:2]) for start in starts} & {*self.apart}:
            port = Failure(FailureKind.EXCEPTION, "OSError: address in use")
            return PairOutcome(first, replace(second, failure=port), None, port.text)
        ratio = TurnRatio(math.log(rates[0] / rates[1]), 0.003, 40)
        return PairOutcome(first, second, ratio)


def test_a_commit_that_cannot_be_live_takes_live_pairs_from_no_other(tmp_path: Path) -> None:
    course = HistoryCourse(tmp_path, machine=LiveMachine)
    machine = course.machine
    assert isinstance(machine, LiveMachine)
    machine.apart = (16,)
    found = course.run()
    assert found.culprit == name(CULPRIT)
    assert {pair.commit for pair in found.pairs if pair.error is None} == {name(16)}
    assert machine.pairs == 1 + sum(pair.error is not None for pair in found.pairs)
    why = (
        "launches one after the other, not live pairs: a live pair failed: OSError: address in use"
    )
    assert course.measuring.remember.lines == [why]


def test_both_sides_of_a_pair_must_fit_in_memory_together_and_not_one_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpurun.pairs.obstacle.available_memory", lambda: 10 << 30)
    hosts = {number: HostUse(None, None, 3 << 30, None) for number in range(COMMITS + 1)}
    hosts[16] = replace(hosts[16], peak_rss_bytes=5 << 30)
    odd = {number: {"host": host} for number, host in hosts.items()}
    found = HistoryCourse(tmp_path, odd=odd, machine=LiveMachine).run()
    assert found.pairs
    assert None not in [pair.error for pair in found.pairs]


def test_a_live_pair_that_fails_when_the_time_is_up_ends_the_search_for_now(tmp_path: Path) -> None:
    course = HistoryCourse(tmp_path, machine=LiveMachine)
    machine = course.machine
    assert isinstance(machine, LiveMachine)
    machine.apart = (16,)
    course.measuring.deadline = time.monotonic()
    found = course.run()
    assert (found.verdict, found.exit_code, found.pairs, found.skipped) == (
        "inconclusive",
        3,
        (),
        (),
    )
    assert machine.turns == ["0*", "16*", "0", "16"], "none in turn"
    why = "the budget ended after a pair that failed: a live pair failed: OSError: address in use"
    assert course.lines[-1] == why


def test_a_launch_that_fails_by_chance_skips_no_commit_and_ends_no_search(tmp_path: Path) -> None:
    course = HistoryCourse(tmp_path)
    course.machine.crashes = ["0", str(CULPRIT)]
    found = course.run()
    assert (found.culprit, found.skipped) == (name(CULPRIT), ())
    assert not course.machine.crashes
    assert sum(" is launched again: OSError" in line for line in course.lines) == 2


def test_a_pair_is_in_the_file_before_it_is_told(tmp_path: Path) -> None:
    course = HistoryCourse(tmp_path, unbuilt=(8,), max_pairs=12)
    kept: list[str] = []

    def tell(line: str) -> None:
        if line.startswith("pair ") or " is skipped: " in line:
            found = from_json(BisectionReport, json.loads(course.path.read_text()))
            kept.append(f"{len(found.pairs)} {len(found.skipped)} {line}")

    course.runner.asked = replace(course.runner.asked, tell=tell)
    course.run()
    skip = next(number for number, line in enumerate(kept) if " is skipped: " in line)
    assert kept[skip].startswith(f"{skip} 1 080808080 is skipped")
    for number, line in enumerate(kept[:skip] + kept[skip + 1 :], 1):
        assert line.startswith(f"{number} {int(number > skip)} pair {number}: ")


def test_a_search_that_was_killed_after_any_pair_goes_on_from_its_file(tmp_path: Path) -> None:
    pairs = len(HistoryCourse(tmp_path).run().pairs)
    for number in (1, pairs // 2, pairs - 1):
        before = HistoryCourse(tmp_path, max_pairs=number)
        before.run()
        kept = from_json(BisectionReport, json.loads(before.path.read_text()))
        found = HistoryCourse(tmp_path, found=kept).run()
        assert found.culprit == name(CULPRIT)
        assert found.pairs[:number] == before.runner.found.pairs
        assert found.seconds >= kept.seconds


REPOSITORY = Repository(Path("/project"), Path("/project/.git"))


def runner(home: Path, line: tuple[BisectedCommit, ...] = LINE, **changes: Any) -> BisectRunner:
    made = BisectRunner(BENCHMARK, request(home, **changes), SignalGuard())
    made.found = replace(made.found, good=line[0], commits=line[1:])
    return made


def test_another_range_is_another_search(tmp_path: Path) -> None:
    first, again = (runner(tmp_path).state(REPOSITORY) for _ in range(2))
    assert first == again != runner(tmp_path, LINE[:-1]).state(REPOSITORY)


def test_another_device_has_a_search_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = []
    for gpu in ("H100", "H200", "H200"):
        here = {"gpus": [gpu], "cpu": "Xeon"}
        monkeypatch.setattr(bisect_runner, "fingerprint", lambda *words, here=here: here)
        paths.append(runner(tmp_path).state(REPOSITORY))
    assert paths[0] != paths[1] == paths[2]


def test_a_search_goes_on_from_its_file_unless_it_is_to_begin_anew(tmp_path: Path) -> None:
    course = HistoryCourse(tmp_path, max_pairs=3)
    lines: list[str] = []
    runner(tmp_path).state(REPOSITORY).write_text(json.dumps(to_json(course.run())))
    again = runner(tmp_path, tell=lines.append)
    again.state(REPOSITORY)
    assert again.found.pairs == course.runner.found.pairs
    assert lines == ["continuing after 3 pairs (--fresh starts again)"]
    fresh = runner(tmp_path, fresh=True)
    fresh.state(REPOSITORY)
    assert fresh.found.pairs == ()


def test_a_search_whose_file_is_unreadable_says_how_to_start_again(tmp_path: Path) -> None:
    runner(tmp_path).state(REPOSITORY).write_text('{"benchmark":')
    with pytest.raises(GpurunError, match="cannot be read") as raised:
        runner(tmp_path).state(REPOSITORY)
    assert raised.value.todo == "--fresh starts again"


def test_the_report_names_the_culprit_its_author_and_what_is_skipped(tmp_path: Path) -> None:
    found = HistoryCourse(tmp_path, unbuilt=(12,)).run()
    assert from_json(BisectionReport, json.loads(json.dumps(to_json(found)))) == found
    lines = bisection_lines(found)
    assert lines[0] == (
        f'FOUND train|er: 090909090 "Change 9" by An Author ({len(found.pairs)} pairs)'
    )
    assert lines[1] == "  throughput −9.8 % (−14.1 % to −2.6 %) against its parent"
    assert lines[2].endswith(" 000000000..161616161")
    assert '  skipped 121212121 "Change 12" by An Author: setup failed: no compiler' in lines
    assert lines[-1] == "see git show 090909090"
    text = bisection_markdown(found)
    assert text.startswith("### gpurun bench bisect: FOUND train\\|er: 090909090")
    assert "\n- skipped 121212121" in text


def test_the_report_of_a_search_that_is_not_over_lists_who_is_left(tmp_path: Path) -> None:
    found = HistoryCourse(tmp_path, max_pairs=2).run()
    lines = bisection_lines(found)
    assert lines[0] == "INCONCLUSIVE train|er: 16 commits may have brought the drop (2 pairs)"
    assert sum(line.startswith("  suspect ") for line in lines) == 6
    assert "  and 10 more" in lines
    assert "--max-pairs" in lines[-1]
