"""What a benchmark opens is recorded; a commit that changes nothing of it is not launched."""

from __future__ import annotations

import json
import os
from pathlib import Path

from gpurun.records.bench.benchmark import BenchmarkRecord
from gpurun.records.bench.comparison import Comparison
from gpurun.records.codec import from_json
from tests.integration.test_bench_training import SCRIPT, WORK, run
from tests.repositories import commit, new_repository

READS = """
import subprocess
assert subprocess.run(["cat", "config/rate.txt"], capture_output=True).stdout
with open("data/samples.txt") as file:
    file.read()
"""


def test_a_commit_that_changes_nothing_that_is_opened_is_not_launched(tmp_path: Path) -> None:
    folder = new_repository(tmp_path / "project")
    files = {
        "train.py": READS + SCRIPT,
        "work.py": WORK.format(rate=0.1, temperature=1.0),
        "config/rate.txt": "0.1\n",
        "data/samples.txt": "1\n",
        "tools/plot.py": "pass\n",
        "README.md": "# It\n",
        ".gitignore": ".gpurun/\n__pycache__/\n*.json\n",
    }
    commit(folder, files)
    flags = ("--launches", "1", "--steps", "20", "--json", "measured.json")
    done = run(folder, "-m", "gpurun", "bench", *flags, "train.py")
    assert done.returncode == 0, done.stderr
    record = from_json(BenchmarkRecord, json.loads((folder / "measured.json").read_text()))
    assert record.files_opened is not None, done.stderr
    opened = {name for name in record.files_opened if name in files}
    assert opened == {"train.py", "work.py", "config/rate.txt", "data/samples.txt"}

    commit(folder, {"README.md": "# That\n", "tools/plot.py": "print()\n"})
    told = run(folder, "-m", "gpurun", "bench", "--compare", "main", "--json", "c.json", "train.py")
    assert told.returncode == 0, told.stderr
    assert "passed without a launch: none of 2 changed files is among" in told.stderr
    found = from_json(Comparison, json.loads((folder / "c.json").read_text()))
    assert (found.verdict, found.launched, found.pairs) == ("pass", False, 0)
    assert len(os.listdir(folder / ".gpurun" / "runs")) == 1
