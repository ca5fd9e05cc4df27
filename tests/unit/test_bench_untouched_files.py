"""A commit that changes nothing that the benchmark opens passes without a launch, and says so."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from gpurun.bench.compare import compare_sides as comparing
from gpurun.bench.compare import untouched_files
from gpurun.bench.compare.compare_sides import CompareRequest, compare
from gpurun.bench.compare.untouched_files import untouched
from gpurun.bench.trees.git import open_repository
from gpurun.pairs.gate import GatePlan
from gpurun.records.bench.benchmark import BenchmarkRecord
from gpurun.report.comparison_text import comparison_lines, comparison_markdown
from gpurun.trials.signal_guard import SignalGuard
from tests.repositories import commit, git, new_repository
from tests.unit.bench_launches import BENCHMARK
from tests.unit.benchmark_records import FINGERPRINT, record

FILES = {
    "train.py": "import model\n",
    "model.py": "DEPTH = 1\n",
    "config/base.toml": "rate = 0.1\n",
    "tools/plot.py": "pass\n",
    "README.md": "# It\n",
    "requirements.txt": "torch\n",
}
OPENED = ("config/base.toml", "model.py", "train.py")
HERE = {"gpus": ["NVIDIA H200"], "cpu": "a CPU", "driver": "570.86", "torch": "2.13.0"}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(untouched_files, "fingerprint", lambda *_: HERE)
    for name in untouched_files.TURNED:
        monkeypatch.delenv(name, raising=False)
    folder = new_repository(tmp_path / "project")
    commit(folder, FILES)
    return folder


def known(folder: Path, **changes: object) -> BenchmarkRecord:
    """A record of the first commit."""
    base = git(folder, "rev-list", "--max-parents=0", "HEAD")
    made = record(
        commit=base,
        script="train.py",
        args=(),
        fingerprint=replace(FINGERPRINT, settings={}),
        files_opened=OPENED,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def told(folder: Path, *records: BenchmarkRecord, setup: str | None = None) -> str | None:
    base = git(folder, "rev-list", "--max-parents=0", "HEAD")
    benchmark = replace(BENCHMARK, folder=folder, setup=setup)
    return untouched(benchmark, open_repository(folder), base, records or (known(folder),))


def test_a_change_of_what_is_not_opened_passes(project: Path) -> None:
    commit(project, {"tools/plot.py": "print()\n", "README.md": "# That\n"})
    line = told(project)
    assert line is not None
    assert line.startswith("passed without a launch: none of 2 changed files is among the 3 that")
    assert line.endswith("(record r0000)")


@pytest.mark.parametrize(
    "files",
    [
        {"model.py": "DEPTH = 2\n"},
        {"config/base.toml": "rate = 0.2\n"},
        {"requirements.txt": "torch==2.13\n"},
        {"tools/new.py": "pass\n"},
        {"config/notes.md": "read by a glob?\n"},
        {"sitecustomize.py": "pass\n"},
        {"README.md": "# That\n", "model.py": "DEPTH = 2\n"},
    ],
)
def test_a_change_that_may_reach_the_benchmark_is_launched(
    project: Path, files: dict[str, str]
) -> None:
    commit(project, files)
    assert told(project) is None


def test_files_that_come_or_go_are_launched_but_for_documents_apart(project: Path) -> None:
    commit(project, {"docs/guide.md": "how\n"})
    assert told(project) is not None
    (project / "tools" / "plot.py").unlink()
    assert told(project) is None
    git(project, "checkout", "tools/plot.py")
    (project / "scratch.txt").write_text("untracked")
    assert told(project) is None


def test_uncommitted_changes_and_links_count(project: Path) -> None:
    (project / "tools" / "plot.py").write_text("print()\n")
    assert told(project) is not None
    (project / "tools" / "plot.py").unlink()
    (project / "tools" / "plot.py").symlink_to("../model.py")
    assert told(project) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"files_opened": None},
        {"commit": "f" * 40},
        {"dirty": True},
        {"error": "exit code 1"},
        {"args": ("--small",)},
        {"script": "other.py"},
        {"fingerprint": replace(FINGERPRINT, settings={}, torch="2.12.0")},
        {"fingerprint": replace(FINGERPRINT, settings={}, device="NVIDIA H100")},
        {"fingerprint": FINGERPRINT},
    ],
)
def test_a_record_of_something_else_says_nothing(project: Path, changes: dict[str, object]) -> None:
    commit(project, {"README.md": "# That\n"})
    assert told(project) is not None
    assert told(project, known(project, **changes)) is None
    assert told(project, setup="pip install -e .") is None


def test_the_document_passes_and_says_that_nothing_was_launched(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit(project, {"README.md": "# That\n"})
    monkeypatch.setattr(comparing, "Launcher", None)  # nothing may be launched
    lines: list[str] = []
    asked = CompareRequest(
        "main", project / ".gpurun", GatePlan(), math.inf, True, lambda one: None, lines.append,
        recorded=lambda name: (known(project),),
    )  # fmt: skip
    found = compare(replace(BENCHMARK, folder=project), asked, SignalGuard())
    assert (found.verdict, found.exit_code, found.launched) == ("pass", 0, False)
    assert found.regression_detected is False
    assert found.slowdown is None
    assert any(line.startswith("passed without a launch: ") for line in lines)
    assert any(note.startswith("passed without a launch: ") for note in found.notes)
    assert "(nothing was launched)" in comparison_lines(found)[-1]
    assert "passed without a launch" in comparison_markdown(found)
