"""What a comparison says of launches: the document, its lines, and unequal work by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from gpurun.bench.compare.comparison_document import Compared, comparison
from gpurun.bench.compare.pair_runner import Findings
from gpurun.bench.record_of_launches import Version, record_of, scaling_efficiency
from gpurun.bench.unfinished import Unfinished, worst_with_others
from gpurun.bench.workload import check_workload
from gpurun.errors import ExitCode, GpurunError
from gpurun.pairs.engine import Pair
from gpurun.pairs.gate import Gated, judge
from gpurun.records.bench.benchmark import BenchmarkPurpose
from gpurun.records.bench.comparison import Comparison
from gpurun.records.bench.metrics import Metric
from gpurun.records.codec import from_json, to_json
from gpurun.records.scaling import ScalingPoint, ScalingReport
from gpurun.report.comparison_text import comparison_lines
from gpurun.trials.stop_rules import WHOLE, later_rule
from tests.unit.bench_launches import BENCHMARK, launch
from tests.unit.benchmark_records import record

QUIET_SD = 0.003
"""A machine on which equal launches hardly differ: texts hold no assumption of `gpurun`."""


def found(currents: list[float]) -> Findings:
    pairs = [Pair(launch("baseline", 1000.0), launch("current", rate)) for rate in currents]
    findings = Findings(pairs=pairs, gated=dict(BENCHMARK.thresholds))
    gated = findings.gated.items()
    with mock.patch("gpurun.pairs.estimate.IN_TURN_SD", QUIET_SD):
        findings.result = judge([Gated(m, findings.figures(m), x) for m, x in gated])
    return findings


def document(
    findings: Findings, commits: int = 1, unfinished: Unfinished | None = None, **more: Any
) -> Comparison:
    older, newer = Version("a" * 40, None, False), Version("b" * 40, "main", False)
    records = tuple(
        record_of(BENCHMARK, launches, version, BenchmarkPurpose.COMPARE) if launches else None
        for version, launches in (
            (older, findings.launches("baseline")),
            (newer, findings.launches("current")),
        )
    )
    between = tuple(f"{n:x}" * 40 for n in range(11, 11 + commits))
    compared = Compared(older, newer, (records[0], records[1]), between)
    return comparison(BENCHMARK, findings, compared, 90.0, unfinished, **more)


def test_a_regression_says_how_much_and_which_commit() -> None:
    one = document(found([800.0, 801.0, 799.0, 800.5]))
    assert (one.verdict, one.exit_code, one.regression_detected) == ("regression", 1, True)
    assert one.slowdown == pytest.approx(0.2, abs=0.002)
    assert one.performance_delta == pytest.approx(-20.0, abs=0.2)
    assert one.slowdown_confidence_interval is not None
    assert (one.threshold, one.pairs) == (0.05, 4)
    assert one.likely_culprit_commit == "b" * 40
    assert one.baseline.samples_per_second == 1000.0
    assert len(one.current.launches) == 4
    assert from_json(Comparison, to_json(one)) == one
    several = document(found([800.0] * 4), commits=2)
    assert several.likely_culprit_commit is None
    assert several.recommendation.endswith("; gpurun bench bisect aaaaaaaaa..bbbbbbbbb searches")


def test_a_record_has_the_efficiency_of_the_same_command_commit_and_device(tmp_path: Path) -> None:
    mine = record(device="NVIDIA H200", script="./train.py")
    other = "f" * 40
    for number, (command, commit, efficiency) in enumerate(
        [
            (("train.py", "--epochs", "1"), mine.commit, 0.8),
            (("train.py", "--epochs", "1"), mine.commit, 0.9),
            (("train.py", "--epochs", "2"), mine.commit, 0.5),
            (("train.py", "--epochs", "1"), other, 0.6),
        ]
    ):
        points = (
            ScalingPoint(1, 100.0, 1.0, 1.0, None, None, None, None),
            ScalingPoint(2, 180.0, 1.8, efficiency, None, None, None, None),
            ScalingPoint(4, None, None, None, None, None, None, None, error="out of memory"),
        )
        report = ScalingReport(
            "weak", "failed", 5, command, "NVIDIA H200", 4, False, None, 3, None, points, (), None,
            60.0, commit=commit,
        )  # fmt: skip
        folder = tmp_path / "runs" / f"2026112{number}-120000-abcdef"
        folder.mkdir(parents=True)
        (folder / "scaling.json").write_text(json.dumps(to_json(report)))
    assert scaling_efficiency(tmp_path, mine) == 0.9
    assert scaling_efficiency(tmp_path, replace(mine, dirty=True)) is None
    assert scaling_efficiency(tmp_path, replace(mine, device="NVIDIA H100")) is None
    assert scaling_efficiency(tmp_path / "empty", mine) is None


def test_a_gain_has_a_positive_delta_and_passes() -> None:
    one = document(found([1100.0, 1101.0, 1099.0, 1100.0]))
    assert (one.verdict, one.exit_code, one.regression_detected) == ("pass", 0, False)
    assert one.performance_delta is not None
    assert one.performance_delta > 9
    assert one.recommendation == "nothing to do"


def test_time_that_ends_early_is_inconclusive() -> None:
    findings = found([1000.0])
    findings.ended = "the budget ended after 1 pair"
    one = document(findings)
    assert (one.verdict, one.exit_code, one.pairs) == ("inconclusive", 3, 1)
    assert one.slowdown is None
    assert {metric.verdict for metric in one.metrics} == {"inconclusive"}
    assert "--budget" in one.recommendation
    assert comparison_lines(one)[-2] == "INCONCLUSIVE train|er: undecided (1 pair)"


def test_pairs_that_leave_it_undecided_say_what_they_know_so_far() -> None:
    findings = found([1000.0, 930.0])
    findings.ended = "the budget ended after 2 pairs"
    one = document(findings)
    assert (one.verdict, one.exit_code, one.pairs) == ("inconclusive", 3, 2)
    assert one.slowdown == pytest.approx(0.036, abs=0.001)
    assert one.slowdown_confidence_interval is not None
    assert one.slowdown_confidence_interval[0] < 0 < 0.05 < one.slowdown_confidence_interval[1]


def test_a_crash_is_no_regression_whatever_was_measured_before() -> None:
    findings = found([800.0] * 4)
    findings.failed.append(launch("current", 800.0, status="failed", error="ValueError: no"))
    one = document(findings, unfinished=Unfinished("failed", 5, "it failed", "see its output"))
    assert (one.verdict, one.exit_code, one.regression_detected) == ("failed", 5, False)
    assert one.likely_culprit_commit is None
    assert [x.error for x in one.current.launches][-1] == "ValueError: no"
    assert comparison_lines(one)[-2:] == ["FAILED train|er: it failed", "see its output"]


def test_of_several_benchmarks_the_worst_holds_the_others() -> None:
    passed, slower = document(found([1000.0] * 4)), document(found([800.0] * 4))
    assert worst_with_others([passed, slower]) == replace(slower, others=(passed,))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"batch_size": 16.0}, "the batch size is 16, and 8 in the baseline"),
        ({"parameters": 200}, "the number of parameters is 200, and 100 in the baseline"),
        ({"status": "completed", "steps": 70}, "the number of steps is 70, and 60 in the baseline"),
    ],
)
def test_unequal_work_is_refused_by_name(changes: dict[str, Any], what: str) -> None:
    base = launch("baseline", 1000.0, status=changes.get("status", "stopped"))
    with pytest.raises(GpurunError) as raised:
        check_workload(base, launch("current", 1000.0, **changes))
    assert raised.value.what == f"the workload has changed: {what}"
    assert raised.value.code is ExitCode.NO_BASELINE


def test_steps_of_launches_that_were_stopped_may_differ() -> None:
    check_workload(launch("baseline", 1000.0), launch("current", 1000.0, steps=70))


def test_all_later_launches_take_the_steps_of_the_faster_side() -> None:
    rule = later_rule(None, [launch("baseline", 800.0).result, launch("current", 1600.0).result])
    assert rule.min_steps == rule.max_steps == 10 + 800
    short = launch("current", 1600.0, status="completed", steps=300)
    assert later_rule(None, [launch("baseline", 800.0).result, short.result]) is WHOLE
    assert later_rule(20, [short.result]).max_steps == 30


def test_step_time_alone_gives_the_slowdown() -> None:
    findings = found([800.0] * 4)
    pairs = findings.figures(Metric.STEP_TIME)
    findings.result = judge([Gated(Metric.STEP_TIME, pairs, 0.05)])
    assert document(findings).slowdown == pytest.approx(0.2, abs=0.002)
