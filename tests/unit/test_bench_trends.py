"""Records as trends: what is compared with what, what is left out, and which commits stand out."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import pytest

from gpurun.arguments.flag_values import moment_of
from gpurun.bench.history.branch_records import Branch
from gpurun.bench.history.trends import Accepted, trends
from gpurun.errors import GpurunError
from gpurun.records.bench.benchmark import AcceptedBaseline, BenchmarkRecord
from gpurun.records.bench.history import History, ReferenceKind, Trend
from gpurun.records.bench.metrics import Metric
from gpurun.report.history_text import conditions, history_grid, history_lines, spark, title
from tests.unit.benchmark_records import FINGERPRINT, LAUNCH, record

COUNT = 24
SHAS = [f"{i:040x}" for i in range(COUNT)]
MAIN = Branch("main", {sha: i for i, sha in enumerate(SHAS)}, {SHAS[12]: "Use float64"}, whole=True)
OTHER = replace(FINGERPRINT, torch="2.14.0")


def at(number: int, rate: float, **changes: object) -> BenchmarkRecord:
    """The record of a commit whose launches came to this rate, give or take half a percent."""
    spread = (0.995, 1.0, 1.005, 1.002, 0.998)
    off = spread[number * 7 % 5]
    launches = tuple(replace(LAUNCH, samples_per_second=rate * off * s) for s in spread)
    given = {"launches": launches, "samples_per_second": rate * off, **changes}
    return record(number, **given)


def stepping() -> list[BenchmarkRecord]:
    """A history that loses a tenth with commit 12."""
    return [at(i, 1000.0 if i < 12 else 900.0) for i in range(COUNT)]


def shown(
    records: list[BenchmarkRecord],
    metric: Metric = Metric.THROUGHPUT,
    accepted: list[Accepted] | None = None,
    branch: Branch = MAIN,
) -> tuple[Trend, ...]:
    return trends(metric, records, accepted or [], branch)


def history(found: tuple[Trend, ...], **more: int) -> History:
    counts = {"elsewhere": 0, "unmeasured": 0, **more}
    return History("throughput", "main", None, None, found, **counts)


def test_a_loss_is_told_with_its_commit_and_size() -> None:
    (trend,) = shown(stepping())
    (change,) = trend.changes
    assert (change.commit, change.subject, change.unmeasured) == (SHAS[12], "Use float64", 0)
    assert change.direction == "regression"
    assert change.change == pytest.approx(-0.1, abs=0.01)
    low, high = change.change_confidence_interval
    assert low < -0.1 < high
    assert [(level.start, level.stop) for level in trend.levels] == [(0, 12), (12, 24)]
    assert trend.reference is not None
    assert trend.reference.kind is ReferenceKind.PREVIOUS_LEVEL
    assert trend.change == pytest.approx(-0.1, abs=0.02)
    line = history_lines(history((trend,)))[0]
    assert line.startswith("regression −10.")
    assert line.endswith(f"with {SHAS[12][:9]} 2026-11-02: Use float64")


def test_a_small_loss_with_every_commit_is_told_as_a_drift() -> None:
    (trend,) = shown([at(i, 1000.0 * 0.99**i) for i in range(COUNT)])
    assert trend.changes == ()
    assert trend.drift is not None
    assert trend.drift.direction == "regression"
    assert trend.drift.change_per_point == pytest.approx(-0.01, abs=0.002)
    line = history_lines(history((trend,)))[0]
    assert line.startswith("regression −2")
    assert line.endswith("by a drift over 24 records: −1.0 % a record")


def test_the_utilization_of_the_gpu_has_a_trend_of_its_own() -> None:
    dropping = [
        at(i, 1000.0, launches=(), gpu_utilization_percent=90.0 if i < 12 else 60.0)
        for i in range(COUNT)
    ]
    (trend,) = shown(dropping, Metric.GPU_UTILIZATION)
    assert (trend.unit, trend.higher_is_better) == ("%", True)
    assert [change.direction for change in trend.changes] == ["regression"]
    assert history_grid(history((trend,))).rows[0][-2] == "60.0 %"


def test_memory_that_grows_is_a_regression() -> None:
    grown = [
        at(i, 1000.0, launches=(), peak_memory_bytes=(3 if i < 12 else 4) << 30)
        for i in range(COUNT)
    ]
    (trend,) = shown(grown, Metric.PEAK_MEMORY)
    assert [change.direction for change in trend.changes] == ["regression"]
    assert trend.unit == "bytes"


def test_two_fingerprints_or_two_workloads_are_never_one_trend() -> None:
    records = stepping()
    records[12:] = [replace(one, fingerprint=OTHER) for one in records[12:]]
    found = shown(records)
    assert [len(trend.points) for trend in found] == [12, 12]
    assert not any(trend.changes for trend in found)
    assert conditions(found) == ["NVIDIA H200, torch 2.14.0", "NVIDIA H200, torch 2.13.0"]
    for changes in ({"batch_size": 64.0}, {"args": ("--epochs", "2")}, {"parameters": 7}):
        records = stepping()
        records[12:] = [replace(one, **changes) for one in records[12:]]
        assert [len(trend.points) for trend in shown(records)] == [12, 12]


def test_what_was_not_measured_is_no_point_and_never_zero() -> None:
    records = stepping()
    records[3] = at(3, 1.0, samples_per_second=None, step_time_ms=None, launches=(), error="crash")
    records[4] = at(4, math.nan)
    records[5] = at(5, 0.0)
    (trend,) = shown(records)
    assert len(trend.points) == COUNT - 3
    assert min(point.value for point in trend.points) > 800
    assert shown(records, Metric.ENERGY) == ()


def test_an_uncommitted_tree_is_marked_and_counts_for_no_level() -> None:
    records = [at(i, 1000.0) for i in range(COUNT - 1)]
    records += [at(COUNT - 1, 500.0, id=f"d{i}", dirty=True) for i in range(8)]
    (trend,) = shown(records)
    assert trend.changes == ()
    assert trend.levels[-1].value == pytest.approx(1000.0, rel=0.01)
    row = history_grid(history((trend,))).rows[0]
    assert "31 (8*)" in row
    assert any(cell.endswith("samples/s*") for cell in row)


def test_commits_that_nobody_measured_may_have_brought_the_change() -> None:
    (trend,) = shown([one for i, one in enumerate(stepping()) if i not in (10, 11)])
    assert trend.changes[0].unmeasured == 2
    assert "(or 2 before it, not measured)" in history_lines(history((trend,)))[0]


def test_an_accepted_record_is_what_the_newest_is_held_against() -> None:
    records = stepping()
    who = ("Ada", records[13].time, "so")
    accepted = AcceptedBaseline("a", "r0013", "vision", FINGERPRINT.key, "main", SHAS[13], *who)
    elsewhere = replace(records[14], commit="f" * 40)
    pairs = [(accepted, records[13]), (replace(accepted, id="b"), elsewhere)]
    (trend,) = shown(records[15:], accepted=pairs)
    assert trend.reference is not None
    assert (trend.reference.kind, trend.reference.accepted_by) == (ReferenceKind.ACCEPTED, "Ada")
    assert trend.change == pytest.approx(0.0, abs=0.02)
    lines = history_lines(history((trend,), unmeasured=1, elsewhere=2))
    assert f"accepted {SHAS[13][:9]} by Ada 2026-11-02: so" in lines
    assert "1 record left out: nothing was measured" in lines
    assert "2 records left out: of other branches (--branch)" in lines


def test_records_of_other_branches_are_left_out_and_the_order_is_that_of_commits() -> None:
    records = [*stepping(), at(30, 1.0, branch="topic")]
    again = at(2, 1000.0, id="again", time=records[-1].time)
    (trend,) = shown([*records[::-1], again])
    assert len(trend.points) == COUNT + 1
    assert [point.record for point in trend.points][2:5] == ["r0002", "again", "r0003"]


def test_without_git_records_follow_in_time_and_a_single_one_is_shown() -> None:
    (trend,) = shown([at(0, 1000.0, commit=None, branch=None)], branch=Branch(None))
    assert (trend.changes, trend.reference, trend.change) == ((), None, None)
    grid = history_grid(history((trend,)))
    assert grid.rows[0][-1] == ""
    assert title(history((trend,))) == "throughput on main (higher is better)"


def test_a_shallow_clone_knows_records_by_the_name_of_their_branch() -> None:
    shallow = Branch("main", {SHAS[23]: 0}, {}, whole=False)
    topic = at(30, 1.0, branch="topic")
    (trend,) = shown([*stepping(), topic], branch=shallow)
    assert len(trend.points) == COUNT
    assert trend.changes[0].unmeasured is None


def test_a_chart_of_noise_is_nearly_flat() -> None:
    assert set(spark([1000.0, 1001.0, 999.0, 1000.0])) <= set("▄▅")
    assert spark([1000.0] * 3 + [900.0] * 3) == "███▁▁▁"


def test_dates_are_days_moments_or_spans() -> None:
    now = datetime(2026, 11, 22, 12, tzinfo=timezone.utc)
    assert moment_of("since", "2d", now) == now - timedelta(days=2)
    assert moment_of("since", "2026-11-01T10:00Z", now) == now.replace(day=1, hour=10)
    start, end = (moment_of("x", "2026-11-01", now, end=end) for end in (False, True))
    assert start is not None
    assert end is not None
    assert timedelta(hours=22) < end - start < timedelta(hours=26)
    for wrong in ("yesterday", "999999d", "2026-13-01", "9999-12-31"):
        with pytest.raises(GpurunError, match="is no date"):
            moment_of("until", wrong, now, end=True)
