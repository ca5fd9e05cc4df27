"""The metrics, read by prometheus_client's own parser; GPU figures are those of recorded H200s."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from gpurun.measure.followed_run import FollowedRun
from gpurun.measure.resource_use import read_samples
from gpurun.records.monitor import MonitorReport, RankState, TrainingState
from gpurun.report.live.metrics_server import SHORTEST_SECONDS, Metrics
from tests.conftest import REPOSITORY
from tests.recordings import unpacked

pytest.importorskip("prometheus_client")
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics import exposition
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_parser
from prometheus_client.parser import text_string_to_metric_families

H200 = REPOSITORY / "tests" / "data" / "h200_slow_vision" / "as_written"
RANK = RankState(0, 7, 12, 0.5, 64.0, 1.25, 0.1, 1_700_000_000.5)
Scraped = dict[str, list[tuple[dict[str, str], float]]]


def registry_of(report: MonitorReport) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(Metrics(lambda: report))
    return registry


def scraped(report: MonitorReport) -> Scraped:
    text = generate_latest(registry_of(report)).decode()
    return {
        family.name: [(sample.labels, sample.value) for sample in family.samples]
        for family in text_string_to_metric_families(text)
    }


def training(command: Sequence[str] = ("train.py",), *ranks: RankState) -> MonitorReport:
    found = TrainingState("r1", tuple(command), ranks or (RANK,))
    return MonitorReport("ok", None, (), (found,))


def test_a_recorded_h200_has_all_gpu_figures() -> None:
    seen = scraped(FollowedRun(H200).report())
    last = read_samples(H200).device[-1]
    expected = {
        "gpu_utilization_percent": last.sm_activity_percent,
        "gpu_memory_used_bytes": last.memory_used_bytes,
        "gpu_memory_total_bytes": last.memory_total_bytes,
        "gpu_temperature_celsius": last.temperature_celsius,
        "gpu_power_usage_watts": last.power_watts,
    }
    assert {name: seen[name] for name in expected} == {
        name: [({"gpu_id": "0"}, value)] for name, value in expected.items()
    }
    (labels, rate), *others = seen["training_samples_per_second"]
    assert others == []
    assert labels["run"] == "as_written"
    assert rate == pytest.approx(325, rel=0.1)


def test_another_recorded_run_has_its_own_loss(tmp_path: Path) -> None:
    seen = scraped(FollowedRun(unpacked("simplenet_as_written", tmp_path)).report())
    ((_, loss),) = seen["training_loss"]
    assert 0 < loss < 3
    assert len(seen["gpu_power_usage_watts"]) == 1


def test_each_gpu_and_rank_has_its_series() -> None:
    (gpu,) = FollowedRun(H200).report().gpus
    gpus = (gpu, replace(gpu, gpu_id=1, power_watts=None))
    report = replace(training(("t.py",), RANK, replace(RANK, rank=1, steps=11)), gpus=gpus)
    seen = scraped(report)
    assert [labels for labels, _ in seen["gpu_utilization_percent"]] == [
        {"gpu_id": "0"}, {"gpu_id": "1"},
    ]  # fmt: skip
    assert seen["gpu_power_usage_watts"] == [({"gpu_id": "0"}, 125.5)]
    assert [(labels["rank"], n) for labels, n in seen["training_steps"]] == [("0", 12), ("1", 11)]


def test_steps_and_samples_are_counters(tmp_path: Path) -> None:
    counted = training(("t.py",), replace(RANK, samples=768))
    text = generate_latest(registry_of(counted)).decode()
    assert "# TYPE training_steps_total counter" in text
    assert re.search(r"^training_steps_total\{.*\} 12\.0$", text, re.MULTILINE)
    assert re.search(r"^training_samples_total\{.*\} 768\.0$", text, re.MULTILINE)
    recorded = FollowedRun(unpacked("simplenet_as_written", tmp_path)).report()
    (rank,) = recorded.trainings[0].ranks
    assert rank.samples is not None
    assert rank.samples > rank.steps


def test_processes_without_a_rank_have_different_labels() -> None:
    spawned = [replace(RANK, rank=None, pid=pid) for pid in (7, 8)]
    seen = scraped(training(("t.py",), *spawned, RANK))
    assert [labels["rank"] for labels, _ in seen["training_steps"]] == ["0", "1", "2"]


def test_figures_that_were_not_measured_have_no_sample() -> None:
    bare = RankState(None, 7, 1, None, None, None, None, 0.0)
    seen = scraped(training(("t.py",), bare))
    assert seen["training_step_time_seconds"] == []
    assert seen["training_loss"] == []
    assert seen["training_steps"][0][1] == 1
    assert seen["gpu_utilization_percent"] == []


def test_a_loss_that_is_not_finite_is_served() -> None:
    ((_, loss),) = scraped(training(("t.py",), replace(RANK, loss=math.inf)))["training_loss"]
    assert loss == math.inf


@pytest.mark.parametrize(
    "name",
    [
        'a"b.py',
        "a\\b.py",
        "a\nb.py",
        'x"} 1\ngpu_power_usage_watts{gpu_id="0"} 9\n#',
        "ä☃.py",
        "a\rb",
    ],
)
def test_hostile_names_stay_within_their_label(name: str) -> None:
    report = training([name, "--token=secret"])
    seen = scraped(report)
    assert [labels["script"] for labels, _ in seen["training_steps"]] == [name]
    assert seen["gpu_power_usage_watts"] == []
    assert "secret" not in generate_latest(registry_of(report)).decode()


def test_bytes_that_are_no_text_are_served() -> None:
    ((labels, _),) = scraped(training(["a\udcff.py"]))["training_steps"]
    assert labels["script"] == "a\\udcff.py"


def test_a_module_is_named() -> None:
    ((labels, _),) = scraped(training(["-m", "pkg.train", "--lr=1"]))["training_steps"]
    assert labels["script"] == "pkg.train"


def test_the_metrics_are_valid_openmetrics_too() -> None:
    text = exposition.generate_latest(registry_of(training())).decode()
    assert "training_steps" in {family.name for family in open_parser(text)}


def test_the_guide_and_the_dashboard_name_the_metrics_that_are_served() -> None:
    text = generate_latest(registry_of(training())).decode()
    served = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in text_string_to_metric_families(text)
    }
    guide = (REPOSITORY / "docs" / "MONITORING.md").read_text()
    assert set(re.findall(r"`((?:gpu|training)_\w+)`", guide)) - {"gpu_id"} == served
    dashboard = json.loads((REPOSITORY / "docs" / "grafana_dashboard.json").read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert set(re.findall(r"(?:gpu|training)_\w+", " ".join(queries))) - {"gpu_id"} == served


def test_many_scrapes_are_one_look() -> None:
    looks = []

    def look() -> MonitorReport:
        looks.append(1)
        return training()

    metrics = Metrics(look)
    for _ in range(20):
        list(metrics.collect())
    assert len(looks) <= 1 + 1 / SHORTEST_SECONDS
