"""Examples in docstrings of classes that users meet: they run on documents as gpurun writes."""

from __future__ import annotations

import doctest
import json
import shutil
from pathlib import Path

import pytest

from gpurun.knobs.api import Knob
from gpurun.records.bench.comparison import Comparison
from gpurun.records.bench.history import History
from gpurun.records.codec import to_json
from gpurun.records.result import RunResult
from gpurun.records.tuning import TuningReport
from tests.conftest import REPOSITORY
from tests.unit.report_records import tuning_report
from tests.unit.test_bench_trends import history, shown, stepping

DATA = REPOSITORY / "tests" / "data"


@pytest.fixture
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder with a document of each kind: recordings from a GPU, and made ones."""
    shutil.copy(DATA / "h200_slow_vision" / "as_written" / "result.json", tmp_path)
    shutil.copy(DATA / "h200" / "comparison_planted.json", tmp_path / "comparison.json")
    (tmp_path / "tuning.json").write_text(json.dumps(to_json(tuning_report())))
    (tmp_path / "history.json").write_text(json.dumps(to_json(history(shown(stepping())))))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("cls", [Knob, RunResult, TuningReport, Comparison, History])
@pytest.mark.usefixtures("documents")
def test_the_example_of_a_class_runs(cls: type) -> None:
    module = __import__(cls.__module__, fromlist=["_"])
    (test,) = doctest.DocTestFinder(recurse=False).find(cls, cls.__name__, module)
    assert test.examples
    told: list[str] = []
    done = doctest.DocTestRunner(verbose=False).run(test, out=told.append)
    assert done.failed == 0, "".join(told)
