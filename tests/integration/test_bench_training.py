"""`gpurun bench --compare` on commits that train otherwise at the same speed; and scripts of CI."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gpurun.records.bench.benchmark import BenchmarkExport, BenchmarkRecord
from gpurun.records.bench.comparison import Comparison
from gpurun.records.codec import from_json, to_json
from tests.forked import NURSERY, REPOSITORY, as_text
from tests.repositories import commit, git, new_repository

SCRIPT = """
import torch, work
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
model = torch.nn.Linear(8, 3)
inputs = torch.randn(320, 8)
labels = inputs[:, :3].argmax(1)
for x, y in DataLoader(TensorDataset(inputs, labels), batch_size=8, shuffle=True):
    loss = torch.nn.functional.cross_entropy(model(x) / work.TEMPERATURE, y)
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= work.RATE * parameter.grad
            parameter.grad = None
"""
FORWARD = """
import torch, work
model = torch.nn.Linear(8, 3)
with torch.no_grad():
    for _ in range(200):
        model(torch.randn(8, 8)) / work.TEMPERATURE
"""
WORK = "RATE = {rate}\nTEMPERATURE = {temperature}\n"
EASY = ("--threshold", "90%", "--metrics", "throughput", "--steps", "25")
"""Speed is not the question: the first look decides, unless the machine is very busy."""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a python program as a pipeline does."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "GITHUB_STEP_SUMMARY": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def project(folder: Path, script: str = SCRIPT) -> Path:
    made = new_repository(folder)
    files = {"train.py": script, "work.py": WORK.format(rate=0.1, temperature=1.0)}
    commit(made, {**files, ".gitignore": ".gpurun/\n__pycache__/\n"})
    return made


def compared(folder: Path, *words: str) -> tuple[int, Comparison, str]:
    """The exit code of a comparison with the commit before, its document and the terminal."""
    place = folder.parent / "compared.json"
    flags = ("--compare", "main", "--json", str(place), *EASY, *words)
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "GITHUB_STEP_SUMMARY": ""}
    done = as_text(NURSERY.launch(("bench", *flags, "train.py"), folder, environment))
    assert place.exists(), done.stderr
    return done.returncode, from_json(Comparison, json.loads(place.read_text())), done.stderr


@pytest.mark.slow  # quick twin: unit/test_bench_training.py
def test_a_commit_that_trains_to_nan_at_full_speed_is_a_regression(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    culprit = commit(folder, {"work.py": WORK.format(rate=0.1, temperature=0.0)})
    code, found, said = compared(folder)
    assert (code, found.verdict, found.regression_detected) == (1, "regression", True)
    assert found.likely_culprit_commit == culprit
    assert "the loss is not finite from step 1 on; the baseline's is finite" in said
    assert "regression" not in {metric.verdict for metric in found.metrics}


@pytest.mark.slow  # quick twin: unit/test_bench_training.py
def test_a_doubled_learning_rate_is_a_warning_and_on_request_exit_code_6(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    commit(folder, {"work.py": WORK.format(rate=0.2, temperature=1.0)})
    code, found, said = compared(folder, "--fail-on-training-change")
    assert (code, found.verdict, found.training_differs) == (6, "training_differs", True)
    assert found.training is not None
    assert (found.training.from_step, found.training.repeat_deviation) == (2, 0.0)
    assert (
        "gpurun: warning: the training differs: the loss is not the baseline's from step 2" in said
    )
    assert said.splitlines()[-1].startswith("verdict=training_differs exit=6")
    points = found.current.launches[0].loss_curve
    assert points is not None
    assert len(points.points) < 40


@pytest.mark.slow  # quick twin: unit/test_bench_training.py
def test_a_script_that_only_runs_forward_is_not_said_to_train_alike(tmp_path: Path) -> None:
    folder = project(tmp_path / "project", FORWARD)
    commit(folder, {"work.py": WORK.format(rate=0.1, temperature=2.0)})
    code, found, said = compared(folder)
    assert found.training_differs is None
    assert (code, found.verdict) in ((0, "pass"), (3, "inconclusive"))  # by what else runs here
    assert "the training was not compared: no loss was seen" in said


@pytest.mark.slow  # quick twin: unit/test_bench_results.py
def test_one_machine_measures_a_commit_and_another_judges_it(tmp_path: Path) -> None:
    folder = project(tmp_path / "project")
    head = commit(folder, {"work.py": WORK.format(rate=0.1, temperature=1.0) + "# again\n"})
    flags = ("--commit-sha", head, "--branch", "topic", "--launches", "2", "--steps", "20")
    done = run(folder, str(REPOSITORY / "scripts" / "run_benchmark.py"), *flags, "train.py")
    assert done.returncode == 0, done.stderr
    results = folder / "benchmark_results.json"
    record = from_json(BenchmarkRecord, json.loads(results.read_text()))
    assert (record.commit, record.branch, record.dirty) == (head, "topic", False)
    assert record.gpu_utilization == record.gpu_utilization_percent
    assert record.peak_memory_bytes is not None
    assert record.memory_usage_gb == record.peak_memory_bytes / 1e9
    assert record.multi_gpu_scaling_efficiency is None  # nothing scaled it
    past = tuple(
        replace(record, id=f"past-{n}", commit=git(folder, "rev-parse", "HEAD~1")) for n in range(5)
    )
    (tmp_path / "past.json").write_text(json.dumps(to_json(BenchmarkExport(past, ()))))
    judge = str(REPOSITORY / "scripts" / "detect_regression.py")
    given = ("--results", "benchmark_results.json", "--threshold", "0.05")
    told = run(folder, judge, *given, "--baseline", str(tmp_path / "past.json"))
    assert told.returncode == 0, told.stderr
    assert "verdict=pass exit=0" in told.stderr.splitlines()[-1]
    alone = run(folder, judge, *given, "--out", str(tmp_path / "empty"))
    assert alone.returncode == 4, alone.stderr
    slower = replace(
        record,
        samples_per_second=None if record.samples_per_second is None else 1.0,
        launches=tuple(replace(x, samples_per_second=1.0) for x in record.launches),
    )
    results.write_text(json.dumps(to_json(slower)))
    worse = run(folder, judge, *given, "--baseline", str(tmp_path / "past.json"))
    assert worse.returncode == 1, worse.stderr


@pytest.mark.parametrize("sha", ["0" * 40, "HEAD"])
def test_a_commit_that_is_not_there_is_not_measured(tmp_path: Path, sha: str) -> None:
    folder = project(tmp_path / "project")
    script = str(REPOSITORY / "scripts" / "run_benchmark.py")
    done = run(folder, script, "--commit-sha", sha, "train.py")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) <= 3, done.stderr
    assert not (folder / "benchmark_results.json").exists()
