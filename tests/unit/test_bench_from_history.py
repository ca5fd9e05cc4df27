"""`--compare REF --from-history`: which records stand for the baseline, and what refuses to.

Launches are replaced by their record; repository and store are real.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from gpurun.bench.compare import compare_with_records as from_history
from gpurun.bench.compare.compare_sides import CompareRequest, accepted_between
from gpurun.bench.compare.compare_with_records import compare_with_history
from gpurun.bench.store import open_store
from gpurun.pairs.gate import GatePlan
from gpurun.records.bench.benchmark import INTERRUPTED, BenchmarkRecord
from gpurun.records.bench.comparison import Comparison
from gpurun.records.codec import from_json, to_json
from gpurun.report.comparison_text import comparison_lines
from gpurun.trials.signal_guard import SignalGuard
from tests.repositories import git, new_repository
from tests.unit.bench_launches import BENCHMARK
from tests.unit.benchmark_records import FINGERPRINT, LAUNCH, record

COMMITS = 14


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A branch with one commit of its own on top of main; it is checked out."""
    made = new_repository(tmp_path_factory.mktemp("history") / "project")
    for number in range(COMMITS):
        git(made, "commit", "-q", "--allow-empty", "-m", f"change {number}")
    git(made, "checkout", "-q", "-b", "topic")
    git(made, "commit", "-q", "--allow-empty", "-m", "mine")
    return made


def measured(sha: str, number: int, rate: float, **changes: object) -> BenchmarkRecord:
    """A record of five launches about this rate, which differs a little from its neighbours'."""
    rate *= 1 + 0.002 * math.sin(3 * number)
    launches = tuple(
        replace(LAUNCH, samples_per_second=rate * (1 + 0.002 * math.cos(5 * i + number)))
        for i in range(5)
    )
    given = {"commit": sha, "launches": launches, "samples_per_second": rate}
    return record(number, **{**given, "parameters": 100, **changes})


@dataclass
class Bench:
    """One comparison, from its records to what is told."""

    folder: Path
    home: Path
    launches: pytest.MonkeyPatch
    shas: list[str]
    told: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.home.mkdir()
        self.store = open_store(self.home, notice=self.told.append)

    def keep(self, rate: Callable[[int], float], **changes: object) -> None:
        """A record of each commit of main."""
        for number in range(COMMITS):
            self.store.add(measured(self.shas[number], number, rate(number), **changes))

    def compare(self, rate: float, **changes: object) -> Comparison:
        """Hold a run of this rate against them."""
        now = measured(self.shas[-1], 90, rate, branch="topic", **changes)
        self.launches.setattr(from_history, "measure", lambda *words: now)
        benchmark = replace(BENCHMARK, name="vision", folder=self.folder)
        asked = CompareRequest(
            "main", self.home, GatePlan(), math.inf, False, self.store.add, self.told.append
        )
        found = compare_with_history(benchmark, asked, self.store, None, SignalGuard())
        assert from_json(Comparison, to_json(found)) == found
        assert found.pairs == 0
        return found


@pytest.fixture
def bench(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    shas = git(repository, "rev-list", "--reverse", "topic").split()
    return Bench(repository, tmp_path / "home", monkeypatch, shas)


def steady(number: int) -> float:
    return 1000.0


def test_the_last_ten_records_of_the_branch_are_the_baseline(bench: Bench) -> None:
    bench.keep(steady)
    same = bench.compare(1000.0)
    assert (same.verdict, same.exit_code, same.baseline_records) == ("pass", 0, 10)
    assert same.baseline.commit == bench.shas[COMMITS - 1]
    assert len(same.baseline.launches) == 50
    assert same.baseline.samples_per_second == pytest.approx(1000.0, rel=0.01)
    assert "weaker than launching both sides one after the other" in same.notes[-1]
    assert comparison_lines(same)[-1].endswith("(against 10 records)")
    kept = bench.store.get("r0090")
    assert kept is not None
    assert (kept.purpose.value, kept.id) == ("compare", same.current.record)


def test_a_slower_tree_is_a_regression_with_its_only_commit(bench: Bench) -> None:
    bench.keep(steady)
    slower = bench.compare(850.0)
    assert (slower.verdict, slower.exit_code, slower.regression_detected) == ("regression", 1, True)
    assert slower.slowdown == pytest.approx(0.15, abs=0.01)
    assert slower.likely_culprit_commit == bench.shas[-1]


def test_records_that_differ_too_much_leave_it_undecided_and_say_what_decides(bench: Bench) -> None:
    bench.keep(lambda number: 1000.0 * (1 + 0.08 * math.sin(2.4 * number)))
    unclear = bench.compare(940.0)
    assert (unclear.verdict, unclear.exit_code) == ("inconclusive", 3)
    assert "leave out --from-history" in unclear.recommendation


def test_only_clean_records_of_the_branch_that_were_measured_to_their_end_count(
    bench: Bench,
) -> None:
    sha = bench.shas[2]
    for number, more in enumerate(
        (
            {"dirty": True},
            {"error": "crash"},
            {"status": INTERRUPTED},
            {"commit": "f" * 40},
            {"benchmark": "text"},
            {},
            {},
        )
    ):
        bench.store.add(measured(sha, number, 1000.0, **more))
    found = bench.compare(1000.0)
    assert (found.verdict, found.exit_code, found.current.record) == ("failed", 4, None)
    assert found.error is not None
    assert found.error.startswith("vision has 2 records of commits up to")
    assert "leave out --from-history" in found.recommendation


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"batch_size": 64.0}, "the batch size is 64, and 32 in the baseline"),
        ({"parameters": 200}, "the number of parameters is 200, and 100 in the baseline"),
        ({"secrets_sha256": "abcd"}, "a secret among the arguments is not that of the baseline"),
        ({"args": ("--epochs", "2")}, "the arguments are '--epochs 2', and '--epochs 1' in"),
        ({"fingerprint": replace(FINGERPRINT, torch="2.14.0")}, "the torch is 2.14.0 here"),
        ({"error": "ValueError: no"}, "the benchmark vision failed: ValueError: no"),
    ],
)
def test_other_work_and_other_machines_are_refused_by_name(
    changes: dict[str, object], what: str, bench: Bench
) -> None:
    bench.keep(steady)
    found = bench.compare(500.0, **changes)
    assert (found.verdict, found.regression_detected) == ("failed", False)
    assert found.exit_code == (5 if "error" in changes else 4)
    assert found.error is not None
    assert what in found.error


def test_after_an_accept_only_records_since_then_count(bench: Bench) -> None:
    bench.keep(lambda number: 1000.0 if number < 9 else 900.0)
    bench.store.accept("r0009", "Ada", "float64 is worth it")
    found = bench.compare(900.0)
    assert (found.verdict, found.baseline_records) == ("pass", 5)
    assert any("accepted by Ada: only records since then count" in note for note in found.notes)

    bench.store.accept("r0012", "Ada", "again")
    found = bench.compare(900.0)
    assert (found.verdict, found.exit_code) == ("failed", 4)
    assert found.error is not None
    assert "of 2 records since, and 4 are needed" in found.error


def test_what_was_accepted_of_another_workload_does_not_count(bench: Bench) -> None:
    bench.keep(steady)
    other = record(99, id="other", commit=bench.shas[12], args=("--size", "large"))
    bench.store.add(other)
    bench.store.accept("other", "Ada", "another size")
    found = bench.compare(1000.0)
    assert found.verdict == "pass"
    assert not any("accepted" in note for note in found.notes)


def test_records_from_before_a_change_of_the_branch_itself_do_not_count(bench: Bench) -> None:
    bench.keep(lambda number: 1000.0 if number < 8 else 900.0)
    found = bench.compare(900.0)
    assert (found.verdict, found.baseline_records) == ("pass", 6)
    assert any(note.startswith("the throughput of the branch changed") for note in found.notes)


def test_memory_that_was_not_measured_is_not_gated(bench: Bench) -> None:
    bare = tuple(replace(LAUNCH, peak_memory_bytes=None) for _ in range(5))
    bench.keep(steady, launches=bare, peak_memory_bytes=None)
    found = bench.compare(1000.0)
    assert [metric.metric for metric in found.metrics] == ["throughput"]
    assert any("peak_memory was not measured in enough" in note for note in found.notes)


def test_a_comparison_names_what_was_accepted_between_its_sides(bench: Bench) -> None:
    bench.keep(steady)
    bench.store.accept("r0009", "Ada", "float64 is worth it")
    asked = CompareRequest("main", bench.home, GatePlan(), math.inf, False, bench.store.add, print)
    asked = replace(asked, accepted=bench.store.baselines)
    (note,) = accepted_between("vision", asked, bench.shas[6:])
    assert f"includes commit {bench.shas[9][:9]}, which Ada accepted" in note
    assert note.endswith("float64 is worth it")
    assert accepted_between("vision", asked, bench.shas[10:]) == ()
