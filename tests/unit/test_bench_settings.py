"""Two settings of one script: what each side runs with, and what may differ between them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from gpurun.bench.benchmark_launcher import Launch, Launcher
from gpurun.bench.compare import compare_sides as comparing
from gpurun.bench.compare.compare_sides import CompareRequest, compare_settings, read_settings
from gpurun.bench.trees.prepared_sides import Side
from gpurun.bench.workload import check_workload
from gpurun.errors import ExitCode, GpurunError
from gpurun.pairs.gate import GatePlan
from gpurun.records.bench.benchmark import INTERRUPTED, BenchmarkPurpose, BenchmarkRecord
from gpurun.records.bench.comparison import Comparison
from gpurun.records.bench.metrics import Metric
from gpurun.records.result import KnobOutcome
from gpurun.records.spec import StopRule
from gpurun.report.comparison_text import comparison_lines, comparison_markdown
from gpurun.trials.signal_guard import SignalGuard
from tests.unit.bench_launches import BENCHMARK, launch

DEFAULT = ("pipeline", "numerics")
KEPT: list[BenchmarkRecord] = []
TOLD: list[str] = []


class Turned(Launcher):
    """Launches whose batch is what their settings say, slower with a worker of their own."""

    starts: ClassVar[list[Side]] = []
    noise: ClassVar[float] = 0.0
    draws: ClassVar[random.Random] = random.Random(0)

    def run(self, start: Side, rule: StopRule, *, first: bool = False) -> Launch:
        self.starts.append(start)
        assert start.applied is not None
        settings = start.applied.settings
        rate = 800.0 if "loader_workers" in settings else 1000.0
        rate *= math.exp(self.draws.gauss(settings.get("cpu_threads", 0) / 100, self.noise))
        batch = float(settings.get("batch_size", {"batch_size": 8})["batch_size"])
        knobs = tuple(KnobOutcome(name, "skipped", "no GPU") for name in settings if name == "tf32")
        made = launch(start.name, rate, batch_size=batch, knobs=knobs)
        return replace(made, start=start, origins=())


@pytest.fixture
def compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Comparison]:
    """Compares files of these texts in a folder that is in no repository."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(comparing, "Launcher", Turned)
    (tmp_path / ".gpurun").mkdir()

    def run(
        *texts: str, allow: tuple[str, ...] = DEFAULT, metrics: tuple[Metric, ...] | None = None
    ) -> Comparison:
        names = ["none" if not text else f"{number}.toml" for number, text in enumerate(texts)]
        for name, text in zip(names, texts, strict=True):
            Path(name).write_text(f"[settings]\n{text}\n")
        for told in (KEPT, TOLD, Turned.starts):
            told.clear()
        asked = CompareRequest(
            "HEAD", tmp_path / ".gpurun", GatePlan(), float("inf"), True, KEPT.append, TOLD.append
        )
        both = (read_settings(names[0]), read_settings(names[1]))
        benchmark = replace(BENCHMARK, folder=tmp_path, args=("--batch", "8"))
        if metrics is not None:
            thresholds = {metric: metric.default_threshold for metric in metrics}
            benchmark = replace(benchmark, metrics=metrics, thresholds=thresholds)
        return compare_settings(benchmark, both, asked, SignalGuard(), (), allow)

    return run


def test_the_sides_are_the_settings_by_the_name_of_their_files(
    compared: Callable[..., Comparison],
) -> None:
    found = compared("", "loader_workers = 1")
    assert (found.verdict, found.exit_code) == ("regression", 1)
    assert (found.baseline.label, found.baseline.settings) == ("none", {})
    assert (found.current.label, found.current.settings) == ("1.toml", {"loader_workers": 1})
    assert found.recommendation == "keep none: under 1.toml throughput got worse"
    assert comparison_lines(found)[0].split() == ["figure", "none", "1.toml", "change"]
    assert "baseline `none`, current `1.toml`" in comparison_markdown(found)
    assert [record.purpose for record in KEPT] == [BenchmarkPurpose.SETTINGS] * 2
    assert KEPT[1].fingerprint.settings["loader_workers"] == 1
    assert "loader_workers" not in KEPT[0].fingerprint.settings
    assert {start.folder for start in Turned.starts} == {Path.cwd()}

    assert compared("loader_workers = 1", "").verdict == "pass"


def test_two_settings_have_a_speedup_with_its_significance_and_the_memory_saved(
    compared: Callable[..., Comparison],
) -> None:
    slower = compared("", "loader_workers = 1")
    assert slower.slowdown is not None
    assert slower.speedup == 1 - slower.slowdown < 1
    assert slower.speedup_confidence_interval is not None
    low, high = slower.speedup_confidence_interval
    assert low < slower.speedup < high < 1
    assert slower.statistically_significant is True
    assert slower.baseline.peak_memory_bytes is not None
    assert slower.current.peak_memory_bytes is not None
    saved = slower.baseline.peak_memory_bytes - slower.current.peak_memory_bytes
    assert slower.memory_saved_bytes == saved
    (line,) = [x for x in comparison_lines(slower) if x.startswith("1.toml against none: ")]
    assert "× the speed (" in line
    assert ", significant)" in line
    same = compared("", "")
    assert same.statistically_significant is False


def test_pairs_go_on_until_the_gain_is_known(
    compared: Callable[..., Comparison], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Turned, "noise", 0.03)
    tens = [compared("", "cpu_threads = 10") for _ in range(20)]
    assert {found.verdict for found in tens} == {"pass"}  # which the gate knows after two or three
    assert sum(found.statistically_significant is True for found in tens) >= 19
    assert max(found.pairs for found in tens) > 3
    for found in tens:
        low, high = found.speedup_confidence_interval or (0.0, 0.0)
        assert low < (found.speedup or 0.0) < high < 1.44 * low
        assert found.slowdown_confidence_interval == (1 - high, 1 - low)


def test_memory_alone_has_no_gain_to_wait_for(compared: Callable[..., Comparison]) -> None:
    found = compared("", "", metrics=(Metric.PEAK_MEMORY,))
    assert (found.verdict, found.speedup, found.memory_saved_bytes) == ("pass", None, 0)


def test_records_of_an_interrupted_comparison_say_so(
    compared: Callable[..., Comparison], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Turned.run

    def until_ctrl_c(self: Turned, start: Side, rule: StopRule, *, first: bool = False) -> Launch:
        if len(self.starts) == 4:  # both first launches, and one pair
            raise KeyboardInterrupt
        return run(self, start, rule, first=first)

    monkeypatch.setattr(Turned, "run", until_ctrl_c)
    assert compared("", "loader_workers = 1").verdict == "interrupted"
    assert [record.status for record in KEPT] == [INTERRUPTED] * 2


def test_settings_reach_the_environment_the_arguments_and_the_runtime(
    compared: Callable[..., Comparison],
) -> None:
    value = '{ batch_size = 16, from = 8, via = "--batch", learning_rate = "keep" }'
    compared("", f"cpu_threads = 1\nbatch_size = {value}", allow=(*DEFAULT, "training"))
    applied = Turned.starts[1].applied
    assert applied is not None
    assert applied.args == ("--batch", "16")
    assert applied.environment.get("OMP_NUM_THREADS") == "1"
    assert [setting.knob for setting in applied.turned] == ["cpu_threads", "batch_size"]


def test_a_setting_that_did_not_apply_is_told(compared: Callable[..., Comparison]) -> None:
    found = compared("", "tf32 = true")
    assert "current: tf32 was not applied (skipped): no GPU" in found.notes


BATCH = 'batch_size = { batch_size = 16, from = 8, via = "loader", learning_rate = "keep" }'


def test_another_batch_needs_consent_and_is_compared_by_samples(
    compared: Callable[..., Comparison],
) -> None:
    with pytest.raises(GpurunError, match="batch_size is a training change"):
        compared("", BATCH)
    allowed = (*DEFAULT, "training")
    found = compared("", BATCH, allow=allowed)
    assert found.verdict == "pass"
    assert any(
        "the batch size is 8 and 16, as allowed: gpurun compares samples/s" in note
        for note in found.notes
    )
    with pytest.raises(GpurunError, match="the step time cannot compare batches"):
        compared("", BATCH, allow=allowed, metrics=(Metric.STEP_TIME,))


def test_work_that_cannot_be_counted_or_another_model_is_refused_whatever_is_allowed() -> None:
    gated = (Metric.THROUGHPUT,)
    plain = launch("baseline", 1000.0, samples_per_second=None)
    other = launch("current", 1000.0, samples_per_second=None, batch_size=16.0)
    for pair in ((plain, other), (launch("b", 1.0), launch("c", 1.0, parameters=200))):
        with pytest.raises(GpurunError, match="the workload has changed") as raised:
            check_workload(*pair, gated)
        assert raised.value.code is ExitCode.NO_BASELINE


@pytest.mark.parametrize(
    ("text", "what", "todo"),
    [
        ("loader_wokers = 1", "1.toml: there is no knob 'loader_wokers'", "loader_workers"),
        (
            "loader_workers = 'four'",
            "1.toml: loader_workers cannot take 'four' (TypeError: it takes a whole number)",
            "take it out",
        ),
        ("[", "1.toml cannot be read: line 2: not valid TOML", "[settings]"),
    ],
)
def test_bad_settings_are_named_by_their_file_before_a_launch(
    compared: Callable[..., Comparison], text: str, what: str, todo: str
) -> None:
    with pytest.raises(GpurunError) as raised:
        compared("", text)
    assert raised.value.what.startswith(what)
    assert todo in raised.value.todo
    assert Turned.starts == []
