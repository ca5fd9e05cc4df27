"""Two comparisons of `bench --compare` recorded on an H200, judged again by their pairs."""

from __future__ import annotations

import json

import pytest

from gpurun.pairs.gate import Gated, Verdict, judge
from gpurun.records.bench.comparison import Comparison, MetricComparison
from gpurun.records.bench.metrics import Metric
from gpurun.records.codec import from_json
from tests.conftest import REPOSITORY

FOLDER = REPOSITORY / "tests" / "data" / "h200"


@pytest.mark.parametrize(
    ("name", "verdict", "lost"),
    [("comparison_equal", "pass", 0.0), ("comparison_planted", "regression", 0.05)],
)
def test_four_pairs_told_equal_trees_from_one_that_loses_the_threshold(
    name: str, verdict: str, lost: float
) -> None:
    """The planted commit makes a step 20/19 as long: 5 % of the throughput, what is allowed."""
    told = from_json(Comparison, json.loads((FOLDER / f"{name}.json").read_text()))
    assert (told.verdict, told.pairs) == (verdict, 4)
    again = judge([gated(one) for one in told.metrics])
    assert again.verdict.value == verdict
    speed = next(one for one in again.metrics if one.metric is Metric.THROUGHPUT)
    assert speed.slowdown == pytest.approx(told.slowdown, abs=0.0002)
    assert speed.slowdown == pytest.approx(lost, abs=0.002)
    assert speed.interval is not None
    assert speed.interval[0] < lost < speed.interval[1]


def test_what_the_planted_commit_adds_in_memory_shows_before_what_it_costs_in_time() -> None:
    """Peaks of equal launches hardly differ. Speeds in turn do, though these four did not."""
    told = from_json(Comparison, json.loads((FOLDER / "comparison_planted.json").read_text()))
    alone = {one.metric: judge([gated(one)]).verdict for one in told.metrics}
    assert alone == {"throughput": Verdict.MORE, "peak_memory": Verdict.REGRESSION}


def gated(recorded: MetricComparison) -> Gated:
    metric = Metric(recorded.metric)
    return Gated(metric, recorded.pairs, recorded.threshold)
