"""What other trackers are given: their format, and nothing that was not measured."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from gpurun.arguments.bench_flags import EXPORT_KINDS
from gpurun.bench.unfinished import worst_with_others
from gpurun.commands.bench.bench_outputs import emit_exports
from gpurun.report.tracker_formats import (
    TRACKERS,
    bencher,
    tracked,
    tracked_records,
)
from tests.unit.benchmark_records import CRASHED, LAUNCH, record
from tests.unit.test_bench_document import document, found

BMF_SCHEMA = {  # as Bencher publishes it
    "type": "object",
    "patternProperties": {
        ".+": {
            "type": "object",
            "patternProperties": {
                ".+": {
                    "type": "object",
                    "properties": {
                        "value": {"type": "number"},
                        "lower_value": {"type": "number"},
                        "upper_value": {"type": "number"},
                    },
                    "required": ["value"],
                }
            },
        }
    },
}
FASTER = replace(LAUNCH, samples_per_second=1002.0)
RECORD = record(launches=(LAUNCH, FASTER), samples_per_second=1001.0)


def test_each_kind_that_the_flag_takes_has_a_document() -> None:
    assert tuple(TRACKERS) == EXPORT_KINDS


def test_github_action_benchmark_gets_what_grows_and_what_shrinks_apart() -> None:
    runs = tracked_records([RECORD])
    assert TRACKERS["customBiggerIsBetter"](runs) == [
        {
            "name": "vision: throughput",
            "unit": "samples/s",
            "value": 1001.0,
            "range": "± 1.414",
        },
        {
            "name": "vision: GPU utilisation",
            "unit": "%",
            "value": 81.5,
            "range": "± 0",
        },
    ]
    shrinking = TRACKERS["customSmallerIsBetter"](runs)
    assert [(e["name"], e["unit"], e["value"]) for e in shrinking] == [
        ("vision: step time", "ms", 10.0),
        ("vision: peak memory", "bytes", 3 << 30),
    ]
    assert "range" not in shrinking[1]  # the greatest of the launches has no spread to both sides


def test_bencher_gets_measures_with_their_units_in_the_name() -> None:
    from jsonschema import validate

    made = bencher(tracked_records([RECORD]))
    validate(made, BMF_SCHEMA)
    assert set(made["vision"]) == {
        "throughput",
        "gpu-utilization-percent",
        "step-time-ms",
        "peak-memory-bytes",
    }
    rate = made["vision"]["throughput"]
    assert rate["upper_value"] - rate["value"] == pytest.approx(math.sqrt(2))
    assert rate["value"] - rate["lower_value"] == pytest.approx(math.sqrt(2))
    assert made["vision"]["peak-memory-bytes"] == {"value": 3 << 30}


def test_of_a_comparison_the_current_side_is_tracked_and_its_slowdown() -> None:
    slower, same = (
        document(found([800.0] * 4)),
        replace(document(found([1000.0] * 4)), benchmark="b"),
    )
    runs = tracked(worst_with_others([same, slower]))
    made = bencher(runs)
    assert list(made) == ["train|er", "b"]
    assert made["train|er"]["throughput"]["value"] == 800.0
    loss = made["train|er"]["slowdown"]
    assert loss["lower_value"] < loss["value"] < loss["upper_value"]


def test_what_was_not_measured_is_left_out_and_never_zero() -> None:
    bare = replace(
        LAUNCH,
        samples_per_second=None,
        gpu_utilization_percent=None,
        step_time_ms=None,
        peak_memory_bytes=None,
    )
    unmeasured = record(
        launches=(bare, bare),
        samples_per_second=math.nan,
        gpu_utilization_percent=None,
        step_time_ms=None,
        peak_memory_bytes=None,
    )
    undecided = document(found([1000.0]))  # no look was reached: there is no slowdown
    assert "slowdown" not in bencher(tracked(undecided))["train|er"]
    crashed = record(launches=(LAUNCH, CRASHED))
    for kind in TRACKERS.values():
        assert not kind(tracked_records([unmeasured]))
        assert not kind(tracked_records([crashed]))
        assert not kind(tracked_records([]))


def test_each_export_is_a_file_and_an_empty_one_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exports = [(kind, str(tmp_path / kind)) for kind in TRACKERS]
    emit_exports(exports, tracked_records([RECORD]))
    for kind, make in TRACKERS.items():
        assert json.loads((tmp_path / kind).read_text()) == make(tracked_records([RECORD]))
    assert capsys.readouterr().err == ""
    emit_exports(exports[:1], [])
    assert "no figure for it was measured" in capsys.readouterr().err
    assert json.loads((tmp_path / exports[0][0]).read_text()) == []
