"""`bench --results FILE`: stored results, with real files, a real store and a real repository."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from gpurun import main
from gpurun.bench.record_of_launches import Version, version_here
from gpurun.bench.store import open_store
from gpurun.errors import GpurunError
from gpurun.records.bench.benchmark import BenchmarkExport, BenchmarkRecord
from gpurun.records.bench.comparison import Comparison
from gpurun.records.codec import from_json, to_json
from gpurun.stats.loss_curve_points import curve_of
from tests.repositories import commit, git, new_repository
from tests.unit.benchmark_records import CRASHED, LAUNCH, record

COMMITS = 6


@dataclass
class Judge:
    """A checkout on the machine that judges."""

    folder: Path
    shas: list[str]
    capture: pytest.CaptureFixture[str]

    def results(self, *records: BenchmarkRecord, name: str = "results.json") -> str:
        one = records[0] if len(records) == 1 else BenchmarkExport(records, ())
        (self.folder.parent / name).write_text(json.dumps(to_json(one)))
        return str(self.folder.parent / name)

    def measured(self, number: int, rate: float = 1000.0, **changes: Any) -> BenchmarkRecord:
        """That of commit `number`, five launches about a rate."""
        rate *= 1 + 0.002 * math.sin(3 * number)
        launches = tuple(
            replace(LAUNCH, samples_per_second=rate * (1 + 0.002 * math.cos(5 * i + number)))
            for i in range(5)
        )
        given = {"commit": self.shas[number], "launches": launches, "samples_per_second": rate}
        return record(number, **{**given, **changes})

    def judge(self, *words: str) -> tuple[int, Comparison | None, str]:
        """The exit code, the document where there is one, and what was said."""
        found = self.folder.parent / "found.json"
        found.unlink(missing_ok=True)
        code = main(["bench", "--json", str(found), *words])
        said = self.capture.readouterr().err
        if not found.exists():
            return code, None, said
        return code, from_json(Comparison, json.loads(found.read_text())), said


@pytest.fixture
def judge(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Judge:
    folder = new_repository(tmp_path / "project")
    shas = [commit(folder, {"model.py": f"DEPTH = {n}\n"}) for n in range(COMMITS)]
    monkeypatch.chdir(folder)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    return Judge(folder, shas, capsys)


def keep(judge: Judge, *records: BenchmarkRecord) -> None:
    (judge.folder / ".gpurun").mkdir(exist_ok=True)
    store = open_store(judge.folder / ".gpurun", notice=print)
    for one in records:
        store.add(one)


@pytest.mark.parametrize(("rate", "code"), [(1000.0, 0), (850.0, 1)])
def test_results_are_judged_by_the_records_of_the_commits_before(
    judge: Judge, rate: float, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs = judge.folder.parent / "outputs"
    monkeypatch.setenv("GITHUB_OUTPUT", str(outputs))
    keep(judge, *(judge.measured(n) for n in range(COMMITS - 1)))
    results = judge.results(judge.measured(COMMITS - 1, rate))
    ended, found, said = judge.judge("--results", results, "--threshold", "0.05")
    assert found is not None
    assert (ended, found.exit_code, found.baseline_records) == (code, code, COMMITS - 1)
    assert found.baseline.commit == judge.shas[-2]
    assert found.current.commit == judge.shas[-1]
    assert found.likely_culprit_commit == (judge.shas[-1] if code else None)
    assert "weaker than launching both sides one after the other" in said
    told = (
        ("regression=true", "verdict=regression") if code else ("regression=false", "verdict=pass")
    )
    assert outputs.read_text().split() == list(told)


def test_records_of_later_commits_are_no_baseline(judge: Judge) -> None:
    keep(judge, *(judge.measured(n, 1000.0 if n < 4 else 500.0) for n in range(COMMITS)))
    ended, found, _ = judge.judge("--results", judge.results(judge.measured(4, 700.0)))
    assert found is not None
    assert (ended, found.baseline_records) == (1, 4)


def test_a_baseline_file_needs_no_git(judge: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = judge.folder.parent / "alone"
    alone.mkdir()
    monkeypatch.chdir(alone)
    past = judge.results(*(judge.measured(n) for n in range(5)), name="past.json")
    slower = judge.results(judge.measured(5, 850.0))
    ended, found, _ = judge.judge("--results", slower, "--baseline", past)
    assert found is not None
    assert (ended, found.baseline_records) == (1, 5)
    assert judge.judge("--results", slower)[0] == 4


def test_a_folder_of_records_is_a_baseline(judge: Judge) -> None:
    keep(judge, *(judge.measured(n) for n in range(5)))
    records = str((judge.folder / ".gpurun").rename(judge.folder.parent / "copied") / "benchmarks")
    slower = judge.results(judge.measured(5, 850.0))
    ended, found, _ = judge.judge("--results", slower, "--baseline", records)
    assert found is not None
    assert (ended, found.baseline_records) == (1, 5)


def test_judged_results_let_the_history_grow(judge: Judge) -> None:
    codes = [judge.judge("--results", judge.results(judge.measured(n)))[0] for n in range(COMMITS)]
    assert codes == [4, 4, 4, 4, 0, 0]
    store = open_store(judge.folder / ".gpurun", notice=print)
    assert store.query() == [judge.measured(n) for n in range(COMMITS)]


def test_a_run_is_no_baseline_of_itself(judge: Judge) -> None:
    everything = judge.results(*(judge.measured(n) for n in range(4)), name="all.json")
    one = judge.results(judge.measured(3))
    ended, found, _ = judge.judge("--results", one, "--baseline", everything)
    assert found is not None
    assert (ended, found.verdict) == (4, "failed")
    assert "has 3 usable records" in (found.error or "")


def test_other_losses_than_the_newest_record_has_are_seen(judge: Judge) -> None:
    def trained(number: int, speed: float, broken: bool = False) -> BenchmarkRecord:
        losses = [math.exp(-0.01 * speed * step) for step in range(50)]
        curve = curve_of([*losses, math.inf] if broken else losses)
        made = judge.measured(number)
        return replace(made, launches=tuple(replace(x, loss_curve=curve) for x in made.launches))

    past = judge.results(*(trained(n, 1.0) for n in range(5)), name="past.json")
    for current, code, flags in (
        (trained(5, 1.0), 0, ["--fail-on-training-change"]),
        (trained(5, 2.0), 0, []),
        (trained(5, 2.0), 6, ["--fail-on-training-change"]),
        (trained(5, 1.0, broken=True), 1, []),
    ):
        words = ("--results", judge.results(current), "--baseline", past, *flags)
        assert judge.judge(*words)[0] == code
    assert "training_differs=true" in judge.judge(*words)[2].splitlines()[-1]


def test_results_that_are_of_a_failed_run_are_no_regression(judge: Judge) -> None:
    keep(judge, *(judge.measured(n) for n in range(5)))
    failed = judge.measured(5, launches=(CRASHED,), status="failed", error="exit code 1: no memory")
    ended, found, _ = judge.judge("--results", judge.results(failed))
    assert found is not None
    assert (ended, found.verdict) == (5, "failed")


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"batch_size": 64.0}, 4, "the workload has changed: the batch size is 64, and 32"),
        ({"args": ("--epochs", "2")}, 4, "the arguments are '--epochs 2', and '--epochs 1'"),
        ({"commit": None}, 4, "the results name no commit"),
        ({"commit": "f" * 40}, 4, "the commits before fffffffff are not known here"),
    ],
)
def test_what_cannot_be_judged_is_no_baseline_and_says_why(
    judge: Judge, changes: dict[str, Any], code: int, said: str
) -> None:
    keep(judge, *(judge.measured(n) for n in range(5)))
    ended, _, told = judge.judge("--results", judge.results(judge.measured(5, **changes)))
    assert ended == code
    assert said in told


def _comparison(path: Path) -> None:
    path.write_text('{"schema": "gpurun/comparison@1"}')


def _cut(path: Path) -> None:
    path.write_text('{"schema": "gpurun/bench')


def _empty(path: Path) -> None:
    path.write_text(json.dumps(to_json(BenchmarkExport((), ()))))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda path: path.unlink(), "cannot be read: No such file"),
        (_cut, "is no record of gpurun: "),
        (_comparison, "is no record of gpurun"),
        (_empty, "holds no record of a benchmark"),
    ],
)
def test_a_file_that_holds_no_results_is_told_in_one_line(
    judge: Judge, spoil: Callable[[Path], None], said: str
) -> None:
    good = judge.results(*(judge.measured(n) for n in range(5)), name="past.json")
    bad = Path(judge.results(judge.measured(5)))
    spoil(bad)
    ended, found, told = judge.judge("--results", str(bad), "--baseline", good)
    assert (ended, found) == (2, None)
    assert said in told
    assert "Traceback" not in told
    current = judge.results(judge.measured(5), name="current.json")
    ended, found, told = judge.judge("--results", current, "--baseline", str(bad))
    assert ended == 4
    assert "Traceback" not in told


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--results", "r.json", "train.py"], "takes no script"),
        (["--results", "r.json", "--launches", "3"], "--results launches nothing"),
        (["--results", "r.json", "--compare", "main"], "drop all but one"),
        (["--baseline", "b.json", "train.py"], "--baseline needs --results"),
        (
            ["--compare", "main", "--commit-sha", "abcdef1", "train.py"],
            "--commit-sha goes with measuring",
        ),
        (["--compare", "main", "--branch", "b", "train.py"], "--branch goes with measuring"),
        (["--fail-on-training-change", "train.py"], "needs --compare, --ab or --results"),
    ],
)
def test_flags_that_say_nothing_together_are_refused(
    judge: Judge, words: list[str], said: str
) -> None:
    ended, _, told = judge.judge(*words)
    assert ended == 2
    assert said in told


# -- --commit-sha ----------------------------------------------------------------------------------


def test_the_commit_that_is_named_must_be_checked_out(judge: Judge) -> None:
    assert version_here(judge.folder, judge.shas[-1]).commit == judge.shas[-1]
    assert version_here(judge.folder, judge.shas[-1][:8]).commit == judge.shas[-1]
    with pytest.raises(GpurunError, match="is not checked out: HEAD is"):
        version_here(judge.folder, judge.shas[0])
    with pytest.raises(GpurunError, match="is no hash of a commit"):
        version_here(judge.folder, "main")
    (judge.folder / "model.py").write_text("DEPTH = 100\n")
    with pytest.raises(GpurunError, match="with uncommitted changes"):
        version_here(judge.folder, judge.shas[-1])


def test_a_tree_without_git_is_what_one_says_it_is(tmp_path: Path) -> None:
    assert version_here(tmp_path, "abcdef1", "topic") == Version("abcdef1", "topic")


def test_a_detached_head_has_the_branch_that_ci_names(
    judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("GITHUB_HEAD_REF", "GITHUB_REF_NAME"):
        monkeypatch.delenv(name, raising=False)
    checked_out = version_here(judge.folder).branch
    assert checked_out is not None
    monkeypatch.setenv("GITHUB_REF_NAME", "12/merge")
    assert version_here(judge.folder).branch == checked_out
    git(judge.folder, "checkout", "--quiet", "--detach")
    assert version_here(judge.folder).branch == "12/merge"
    monkeypatch.setenv("GITHUB_HEAD_REF", "topic")
    assert version_here(judge.folder).branch == "topic"
    assert version_here(judge.folder, branch="mine").branch == "mine"


def test_a_commit_that_is_not_checked_out_is_not_measured(judge: Judge) -> None:
    commit(judge.folder, {"train.py": "raise SystemExit(9)\n"})
    ended, _, told = judge.judge(
        "--commit-sha", git(judge.folder, "rev-parse", "HEAD~1"), "train.py"
    )
    assert ended == 2
    assert "is not checked out: HEAD is" in told
    assert not (judge.folder / ".gpurun" / "runs").exists()
