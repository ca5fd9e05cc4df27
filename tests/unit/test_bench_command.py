"""`gpurun bench` of several benchmarks: what ends one of them costs nothing of the others."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpurun import main
from gpurun.arguments.bench_flags import BenchOptions
from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.bisect.bisect_runner import BisectRequest, not_searched
from gpurun.bench.compare import compare_sides as comparing
from gpurun.bench.compare.compare_sides import CompareRequest, not_compared
from gpurun.bench.compare.pair_runner import Findings
from gpurun.bench.gate_selftest import not_tried
from gpurun.bench.record_of_launches import keep
from gpurun.bench.trees.prepared_sides import BASELINE, CURRENT
from gpurun.bench.unfinished import Unfinished
from gpurun.commands.bench import bench_command as command
from gpurun.commands.bench import bisect_command as bisect_command
from gpurun.commands.bench import selftest_command as selftest_command
from gpurun.commands.bench.chosen_benchmarks import records_home
from gpurun.errors import ExitCode, GpurunError
from gpurun.pairs.engine import Pair
from gpurun.pairs.gate import GatePlan
from gpurun.records.bench.benchmark import BenchmarkRecord
from gpurun.records.bench.comparison import Comparison
from gpurun.trials.signal_guard import SignalGuard
from tests.unit.bench_launches import BENCHMARK, launch
from tests.unit.benchmark_records import record

TWO = "".join(f'[[bench.benchmark]]\nname = "{x}"\nscript = "{x}.py"\n' for x in "ab")
Compare = Callable[[Benchmark, CompareRequest, SignalGuard], Comparison]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "gpurun.toml").write_text(TWO)
    for name in ("a.py", "b.py"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return tmp_path


def slower(benchmark: Benchmark) -> Comparison:
    """A proven regression."""
    found = not_compared(benchmark, Unfinished("failed", 5, ""))
    return replace(found, verdict="regression", exit_code=1, regression_detected=True, error=None)


def run(folder: Path, monkeypatch: pytest.MonkeyPatch, compare: Compare) -> tuple[int, Any]:
    monkeypatch.setattr(command, "compare", compare)
    code = command.run_bench(BenchOptions(compare="main", json="found.json"))
    return code, json.loads((folder / "found.json").read_text())


def test_an_error_in_one_benchmark_leaves_the_others_their_verdicts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(
        benchmark: Benchmark, asked: CompareRequest, interruption: SignalGuard
    ) -> Comparison:
        if benchmark.name == "b":
            raise GpurunError("needed = data/*.bin matches nothing", "check it")
        return slower(benchmark)

    code, found = run(folder, monkeypatch, compare)
    assert (code, found["verdict"], found["benchmark"]) == (1, "regression", "a")
    (other,) = found["others"]
    assert (other["benchmark"], other["verdict"], other["exit_code"]) == ("b", "failed", 2)
    assert other["error"] == "needed = data/*.bin matches nothing"


def test_the_empty_name_of_an_unset_variable_is_not_the_last_commit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def compare(benchmark: Benchmark, request: CompareRequest, _: SignalGuard) -> Comparison:
        asked.append(request.ref)
        return slower(benchmark)

    monkeypatch.setattr(command, "compare", compare)
    main(["bench", "--compare", ""])
    assert set(asked) == {""}  # which no repository has


def test_a_signal_between_two_benchmarks_is_no_pass(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(
        benchmark: Benchmark, asked: CompareRequest, interruption: SignalGuard
    ) -> Comparison:
        interruption.hold()
        os.kill(os.getpid(), signal.SIGTERM)
        return replace(slower(benchmark), verdict="pass", exit_code=0, regression_detected=False)

    code, found = run(folder, monkeypatch, compare)
    assert (code, found["verdict"], found["benchmark"]) == (143, "interrupted", "b")
    assert [(one["benchmark"], one["verdict"]) for one in found["others"]] == [("a", "pass")]


def test_a_signal_after_the_last_comparison_changes_nothing_of_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "gpurun.toml").write_text('[bench]\nscript = "a.py"\n')

    def compare(
        benchmark: Benchmark, asked: CompareRequest, interruption: SignalGuard
    ) -> Comparison:
        interruption.hold()
        os.kill(os.getpid(), signal.SIGTERM)
        return slower(benchmark)

    code, found = run(folder, monkeypatch, compare)
    assert (code, found["verdict"]) == (1, "regression")


Searched = Callable[[Benchmark, Any, SignalGuard], Any]


def failing_first(benchmark: Benchmark, asked: Any, interruption: SignalGuard) -> Any:
    if benchmark.name == "a":
        raise GpurunError("needed = data/*.bin matches nothing", "check it")
    interruption.hold()
    return not_searched_or_tried(benchmark, asked)


def not_searched_or_tried(benchmark: Benchmark, asked: Any) -> Any:
    """A document of b that stands for an answer."""
    if isinstance(asked, BisectRequest):
        found = not_searched(benchmark, asked, Unfinished("failed", 5, ""))
        return replace(found, verdict="no_drop", exit_code=3, error=None)
    tried = not_tried(benchmark, asked, Unfinished("failed", 5, ""))
    return replace(tried, verdict="pass", exit_code=0, error=None)


def signalled(benchmark: Benchmark, asked: Any, interruption: SignalGuard) -> Any:
    interruption.hold()
    os.kill(os.getpid(), signal.SIGTERM)
    return not_searched_or_tried(benchmark, asked)


@pytest.mark.parametrize(
    ("one", "code", "verdicts"),
    [
        (failing_first, 2, {"a": "failed", "b": "answered"}),
        (signalled, 143, {"a": "answered", "b": "interrupted"}),
    ],
)
@pytest.mark.parametrize("word", ["bisect", "selftest"])
def test_a_search_or_selftest_that_ends_early_costs_nothing_of_the_others(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    word: str,
    one: Searched,
    code: int,
    verdicts: dict[str, str],
) -> None:
    monkeypatch.setattr(bisect_command, "bisect", one)
    monkeypatch.setattr(selftest_command, "selftest", one)
    words = ["HEAD~1..HEAD"] if word == "bisect" else []
    assert main(["bench", word, *words, "--json", "found.json"]) == code
    found = json.loads((folder / "found.json").read_text())
    told = {x["benchmark"]: x["verdict"] for x in (found, *found["others"])}
    answer = {"bisect": "no_drop", "selftest": "pass"}[word]
    assert told == {k: v.replace("answered", answer) for k, v in verdicts.items()}


def test_a_measurement_outlives_a_database_out_of_reach(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "measure", lambda benchmark, *_: record(len(benchmark.name)))
    options = BenchOptions(store="sqlite:////proc/nowhere/x.db", json="found.json")
    assert command.run_bench(options) == 0
    assert len(json.loads((folder / "found.json").read_text())["records"]) == 2
    assert capsys.readouterr().err.count("was not entered into the database") == 2


@pytest.mark.parametrize(("commit", "name"), [(None, "vision"), ("abc", "abc")])
def test_a_record_that_is_not_entered_is_named_also_without_a_commit(
    commit: str | None, name: str
) -> None:
    told: list[str] = []

    def refuse(record: BenchmarkRecord) -> None:
        raise OSError("no route")

    assert not keep(record(commit=commit), refuse, told.append)
    assert told == [f"the record of {name} was not entered into the database: no route"]


def test_records_are_where_the_configuration_says(folder: Path) -> None:
    with (folder / "gpurun.toml").open("a") as file:
        file.write('[run]\nout = "kept"\n')
    assert records_home(None) == folder / "kept"
    assert records_home("mine") == folder / "mine"


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "No space left on device"),
        (GpurunError("git is not there", "install it"), None),
        (AssertionError("a bug"), None),
    ],
)
def test_pairs_that_were_finished_are_kept_whatever_ends_the_comparison(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, told: str | None
) -> None:
    kept: list[BenchmarkRecord] = []
    pair = Pair(launch(BASELINE, 1000.0), launch(CURRENT, 800.0))
    monkeypatch.setattr(comparing, "Findings", lambda: Findings(pairs=[pair] * 4))
    asked = CompareRequest("main", tmp_path, GatePlan(), math.inf, False, kept.append, print)

    def fail() -> Any:
        raise error

    def compare() -> Comparison:
        with SignalGuard() as interruption:
            return comparing.compare_sides(BENCHMARK, asked, interruption, fail)

    if told is None:
        with pytest.raises(type(error)):
            compare()
    else:
        found = compare()
        assert (found.verdict, found.exit_code) == ("failed", int(ExitCode.BENCHMARK_FAILED))
        assert told in (found.error or "")
    assert [len(one.launches) for one in kept] == [4, 4]
