"""A test of two samples: what chance explains, and what it does not."""

from __future__ import annotations

import pytest

from gpurun.stats.descriptive import chance_of_more


def test_counts_are_compared_as_fisher_does() -> None:
    assert chance_of_more((8, 8), (0, 8)) == pytest.approx(1 / 12870)  # 1 of 16 over 8 draws
    assert chance_of_more((0, 8), (8, 8)) == pytest.approx(1)
    assert chance_of_more((40, 64), (41, 64)) > 0.5
