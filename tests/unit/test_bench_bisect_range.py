"""The command line of `gpurun bench bisect`, and the ranges that it takes and refuses."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpurun import main
from gpurun.arguments.bench_subcommand_flags import BisectOptions, parse_bisect
from gpurun.arguments.flag_table import flags_of
from gpurun.bench.bisect import bisect_runner
from gpurun.bench.bisect.bisect_runner import commit_range
from gpurun.bench.bisect.culprit_search import SearchPlan, answered
from gpurun.bench.trees.git import open_repository
from gpurun.errors import ExitCode, GpurunError
from gpurun.isolation.isolation_mode import Mode
from gpurun.records.bench.bisection import BisectedPair, BisectionReport
from gpurun.trials.signal_guard import SignalGuard
from tests.repositories import commit, git, new_repository
from tests.unit.bench_launches import BENCHMARK
from tests.unit.test_bench_bisect import request


@pytest.mark.parametrize(
    "words",
    [
        ["v1..v2", "--json", "x", "train.py", "--epochs", "1"],
        ["--json", "x", "v1..v2", "train.py", "--epochs", "1"],
        ["v1", "--json", "x", "v2", "train.py", "--epochs", "1"],
        ["--json=x", "v1", "v2", "train.py", "--epochs", "1"],
    ],
)
def test_flags_stand_before_and_after_the_range(words: list[str]) -> None:
    options = parse_bisect(words)
    assert options is not None
    assert (options.good, options.bad, options.json) == ("v1", "v2", "x")
    assert (options.script, options.args) == ("train.py", ("--epochs", "1"))


def test_a_range_without_an_end_goes_up_to_head() -> None:
    options = parse_bisect(["v1.."])
    assert options is not None
    assert (options.good, options.bad, options.script) == ("v1", "HEAD", None)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ([], "bisect needs a range GOOD..BAD"),
        (["v1"], "bisect needs a range, and 'v1' is one commit"),
        (["v1", "train.py"], "bisect needs a range, and 'v1' is one commit"),
        (["..v2"], "..v2 is no range GOOD..BAD"),
        (["v1...v2"], "v1...v2 is no range GOOD..BAD"),
        (["../train.py"], "../train.py is no range GOOD..BAD"),
        (["v1..v2", "--max-pairs", "none"], "--max-pairs 'none' is not a count"),
        (["v1..v2", "--threshold", "5%"], "unknown flag --threshold"),
        (["v1..v2", "--steps"], "--steps needs a value"),
    ],
)
def test_a_wrong_command_line_is_an_error_with_a_cure(words: list[str], what: str) -> None:
    with pytest.raises(GpurunError) as raised:
        parse_bisect(words)
    assert raised.value.what.startswith(what)
    assert raised.value.todo


@pytest.mark.parametrize("words", [["--help"], ["v1..v2", "-h"], ["v1", "v2", "--help"]])
def test_the_help_names_every_flag(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "bisect", *words]) == 0
    shown = capsys.readouterr().out
    assert all(f"\n  --{name}" in shown for name in flags_of(BisectOptions))


@pytest.fixture
def branched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Tag v1, then commit `one` on main, then a merge of branch `side`, which began at v1."""
    folder = new_repository(tmp_path / "project")
    commit(folder, {"train.py": "", ".gitignore": ".gpurun/\n"}, "v1")
    git(folder, "tag", "v1")
    git(folder, "checkout", "-q", "-b", "side")
    commit(folder, {"side.txt": "1"}, "on the side")
    git(folder, "checkout", "-q", "main")
    commit(folder, {"one.txt": "1"}, "one")
    git(folder, "tag", "one")
    git(folder, "merge", "-q", "--no-ff", "-m", "bring the side", "side")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return folder


def test_a_merged_branch_is_one_change_named_by_its_merge(branched: Path) -> None:
    good, *commits = commit_range(open_repository(branched), "v1", "main")
    assert [one.subject for one in commits] == ["one", "bring the side"]
    assert [one.merge for one in commits] == [False, True]
    assert (good.subject, good.author) == ("v1", "a")


def test_a_merge_that_is_the_culprit_comes_with_the_range_of_its_branch(branched: Path) -> None:
    good, *commits = commit_range(open_repository(branched), "one", "main")
    found = BisectionReport("train", (), 0.025, good=good, commits=tuple(commits))
    merge = commits[-1].commit
    pair = BisectedPair(merge, good.commit, True, 9.0, 10.0, None, (None, None))
    pairs = tuple(replace(pair, throughput_of_commit=9.0 + n % 2 / 50) for n in range(24))
    told = answered(replace(found, pairs=pairs), SearchPlan()).recommendation
    assert told.startswith("it is a merge; gpurun bench bisect $(git merge-base ")
    words = re.findall(r"bisect \$\((.*?)\)\.\.(\S+)", told)
    branch = git(branched, *words[0][0].split()[1:]), git(branched, "rev-parse", words[0][1])
    assert branch == (git(branched, "rev-parse", "v1"), git(branched, "rev-parse", "side"))


@pytest.mark.parametrize(
    ("words", "what", "todo"),
    [
        (["main..HEAD"], "main and HEAD are the same commit", "name an older one"),
        (["main..v1"], "main is not an ancestor of v1", "name one of its ancestors"),
        (["one..side"], "one is not an ancestor of side", "name one of its ancestors"),
        (
            ["side", "main"],
            "side is not on the line of first parents of main",
            "start at their common ancestor",
        ),
    ],
)
def test_a_range_that_cannot_be_searched_is_refused_with_a_cure(
    branched: Path,
    words: list[str],
    what: str,
    todo: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "bisect", *words, "train.py"]) == 4
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith(f"gpurun: FAILED train: {what}")
    assert lines[1].startswith(f"gpurun: {todo}")
    assert lines[-1] == "verdict=failed exit=4 pairs=0"


def test_a_commit_that_nobody_knows_is_an_error_of_the_command_line(
    branched: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "bisect", "v1..mian", "train.py"]) == 2
    assert "has no branch, tag or commit 'mian'" in capsys.readouterr().err


def test_a_shallow_clone_says_that_it_ends_too_early(
    branched: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shallow = branched.parent / "shallow"
    git(branched, "clone", "-q", "--depth", "1", f"file://{branched}", str(shallow))
    git(shallow, "fetch", "-q", "--depth", "1", "origin", "tag", "v1")
    monkeypatch.chdir(shallow)
    assert main(["bench", "bisect", "v1..main", "train.py"]) == 4
    lines = capsys.readouterr().err.splitlines()
    assert "fetch --unshallow" in lines[1]


@pytest.mark.parametrize("refuses", [True, False])
def test_a_search_that_launches_nothing_leaves_no_run_folder(
    refuses: bool, branched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launches cannot be isolated here, or an earlier benchmark took all of the budget."""

    def refuse(*_: object) -> Mode:
        raise GpurunError("no isolation here", "--in-place", ExitCode.BENCHMARK_FAILED)

    if refuses:
        monkeypatch.setattr(bisect_runner, "isolation", refuse)
    benchmark = replace(BENCHMARK, folder=branched)
    spent = request(tmp_path, good="v1", bad="main", deadline=time.monotonic(), in_place=True)
    found = bisect_runner.bisect(benchmark, spent, SignalGuard())
    assert (found.verdict, found.pairs) == ("failed" if refuses else "inconclusive", ())
    assert list((tmp_path / "runs").iterdir()) == []
