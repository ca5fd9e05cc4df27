"""Two comparisons of `bench --compare` recorded on an H200, judged again by their pairs."""

from __future__ import annotations

import json

import pytest
from gpurun.stats.gated_metric import Gated

from gpurun.pairs.gate import judge
from gpurun.records.bench.comparison import Comparison
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
    gated = [Gated(Metric(one.metric), one.pairs, one.threshold) for one in told.metrics]
    again = judge(gated)
    assert again.verdict.value == verdict
    speed = next(one for one in again.metrics if one.metric is Metric.THROUGHPUT)
    assert speed.slowdown == pytest.approx(told.slowdown)
    assert speed.slowdown == pytest.approx(lost, abs=0.002)
    assert speed.interval == pytest.approx(told.slowdown_confidence_interval)
