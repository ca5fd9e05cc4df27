"""Descriptive figures are those of the textbooks, and cost no heavy import."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gpurun.stats.descriptive import geometric_mean, percentile


def test_descriptive_figures() -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], 50) == 2.5
    assert percentile([1.0], 99) == 1.0
    assert percentile([float(i) for i in range(101)], 95) == 95.0
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)


@pytest.mark.parametrize("package", ["gpurun.stats", "gpurun.pairs.gain", "gpurun.pairs.gate"])
def test_importing_stats_imports_neither_scipy_nor_numpy(package: str) -> None:
    code = f"import {package}, sys; sys.exit('scipy' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
