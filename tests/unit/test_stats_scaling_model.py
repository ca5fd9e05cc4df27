"""The projection: a known truth is found again, and what cannot be known is not claimed."""

from __future__ import annotations

import math
import random

import pytest

from gpurun.stats.scaling_model import MeasuredCount, Projection, ScalingFit, project


def points(truth: ScalingFit, counts: tuple[int, ...], width: float = 0.01) -> list[MeasuredCount]:
    """What would be measured of a truth, with intervals of so many parts of the efficiency."""
    made = []
    for gpus in counts:
        efficiency = truth.efficiency(gpus) / truth.efficiency(truth.smallest)
        interval = (efficiency * (1 - width), efficiency * (1 + width))
        made.append(MeasuredCount(gpus, efficiency, None if gpus == counts[0] else interval, 3))
    return made


def projected(measured: list[MeasuredCount], strong: bool = False) -> Projection:
    found = project(measured, strong)
    assert found is not None
    return found


@pytest.mark.parametrize("strong", [False, True])
@pytest.mark.parametrize("smallest", [1, 2])
def test_a_known_truth_is_found_again(strong: bool, smallest: int) -> None:
    truth = ScalingFit(strong, smallest, 1.0, 0.03, 0.0008)
    scale = truth.efficiency(smallest)
    found = projected(points(truth, tuple(smallest * 2**i for i in range(4))), strong)
    for point in found.points:
        assert point.efficiency == pytest.approx(truth.efficiency(point.gpus) / scale, rel=1e-6)
        assert point.band[0] <= point.efficiency <= point.band[1]
    assert found.fit.bandwidth == pytest.approx(0.03 * scale, rel=1e-6)
    assert found.fit.latency == pytest.approx(0.0008 * scale, rel=1e-6)


def test_the_band_holds_the_truth_and_grows_with_the_distance() -> None:
    truth = ScalingFit(False, 1, 1.0, 0.05, 0.001)
    source = random.Random(3)
    held = total = 0
    for _ in range(8):
        noisy = []
        for point in points(truth, (1, 2, 4, 8)):
            logs = [math.log(point.efficiency) + source.gauss(0, 0.01) for _ in range(5)]
            center = sum(logs) / 5
            spread = math.sqrt(sum((x - center) ** 2 for x in logs) / 4 / 5) * 2.776
            bounds = (math.exp(center - spread), math.exp(center + spread))
            noisy.append(
                point if point.gpus == 1 else MeasuredCount(point.gpus, math.exp(center), bounds, 5)
            )
        found = projected(noisy)
        widths = [point.band[1] - point.band[0] for point in found.points[:3]]
        assert widths == sorted(widths)
        for point in found.points:
            total += 1
            held += point.band[0] <= truth.efficiency(point.gpus) <= point.band[1]
    assert held / total > 0.8


def test_it_looks_from_16_to_1024_beyond_what_was_measured() -> None:
    truth = ScalingFit(False, 1, 1.0, 0.01, 0.0001)
    ahead = projected(points(truth, (1, 2, 4))).points
    assert [point.gpus for point in ahead] == [16, 32, 64, 128, 256, 512, 1024]
    ahead = projected(points(truth, (1, 8, 32))).points
    assert [point.gpus for point in ahead] == [64, 128, 256, 512, 1024]


@pytest.mark.parametrize("counts", [(1, 2), (1,), (1, 8)])
def test_one_count_above_1_is_too_little(counts: tuple[int, ...]) -> None:
    assert project(points(ScalingFit(False, 1, 1.0, 0.02, 0.0), counts), False) is None


def test_two_counts_leave_open_what_grows_and_the_band_says_so() -> None:
    found = projected(points(ScalingFit(False, 2, 1.0, 0.04, 0.001), (2, 4)))
    assert found.fit.latency is None
    assert "cannot tell bandwidth from latency" in found.assumptions[0]
    far = found.points[-1]
    assert far.band[0] < 0.5 * far.efficiency


def test_more_than_linear_scaling_is_not_taken_for_negative_costs() -> None:
    measured = [
        MeasuredCount(1, 1.0),
        MeasuredCount(2, 1.05, (1.0, 1.1), 3),
        MeasuredCount(4, 1.1, (1.0, 1.2), 3),
    ]
    found = projected(measured)
    assert found.fit.bandwidth == 0.0
    assert found.fit.latency == 0.0
    assert found.points[-1].efficiency < 1.1


def test_the_same_measurement_gives_the_same_projection() -> None:
    measured = points(ScalingFit(False, 1, 1.0, 0.02, 0.0003), (1, 2, 4, 8), width=0.05)
    assert project(measured, False) == project(list(reversed(measured)), False)
