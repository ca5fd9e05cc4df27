"""`gpurun bench --compare REF --from-history` for real: a slowed tree against records of main."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from gpurun.bench.store import open_store
from gpurun.records.bench.benchmark import utc_moment, utc_text
from gpurun.records.bench.comparison import Comparison
from gpurun.records.codec import from_json
from tests.integration.test_bench_compare import SCRIPT, TABLE, WORK, bench
from tests.repositories import commit, git, new_repository


@pytest.mark.slow  # quick twin: unit/test_bench_from_history.py
def test_a_slowed_tree_is_a_regression_against_the_records_of_main(tmp_path: Path) -> None:
    folder = new_repository(tmp_path / "project")
    files = {"train.py": SCRIPT, "work.py": WORK.format(sleep=0.02), "gpurun.toml": TABLE}
    commit(folder, {**files, ".gitignore": ".gpurun/\n__pycache__/\n"})
    done = bench(folder, "--launches", "1")
    assert done.returncode == 0, done.stderr
    store = open_store(folder / ".gpurun", notice=print)
    (first,) = store.query()
    for hours in range(1, 5):  # as four more runs of an even machine would be kept
        time = utc_text(utc_moment(first.time) - timedelta(hours=hours))
        store.add(replace(first, id=f"{first.id}-{hours}", time=time))

    git(folder, "checkout", "-q", "-b", "slower")
    culprit = commit(folder, {"work.py": WORK.format(sleep=0.25)})
    words = ("--compare", "main", "--from-history", "--launches", "1", "--json", "found.json")
    done = bench(folder, *words)
    assert done.returncode == 1, done.stderr
    found = from_json(Comparison, json.loads((folder / "found.json").read_text()))
    assert (found.verdict, found.baseline_records, found.pairs) == ("regression", 5, 0)
    assert found.likely_culprit_commit == culprit
    assert "the machine may have drifted since" in found.notes[-1]
    assert done.stderr.splitlines()[-1].startswith("verdict=regression exit=1 slowdown=0.")
    _, first = (tmp_path / "summary.md").read_text().splitlines()[:2]
    assert first.startswith("### gpurun bench: REGRESSION"), "below the comment's own mark"
    assert not (folder / ".gpurun" / "worktrees").exists()
