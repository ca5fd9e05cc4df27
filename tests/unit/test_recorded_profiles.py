"""Planted faults on a GPU, as recorded: each is the first finding, and clean scripts have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpurun.commands.diagnose import diagnose_run
from gpurun.measure.run_summary import read_records
from gpurun.records.diagnosis import DiagnosisReport
from gpurun.records.finding import WARNING
from tests.conftest import REPOSITORY
from tests.recordings import unpacked

RECORDED = REPOSITORY / "tests" / "data" / "h100_profiles"
CLEAN = ("plain-clean", "read_in_forward-clean")


def diagnosed(name: str, folder: Path) -> DiagnosisReport:
    run = unpacked(name, folder, RECORDED)
    return diagnose_run(run, read_records(run))


@pytest.mark.parametrize(
    ("name", "kind", "place"),
    [
        ("pageable_copies", "h2d_copy", None),
        ("read_in_forward", "cpu_gpu_sync", ("read_in_forward.py", 15)),
        ("synchronize_each_step", "cpu_gpu_sync", ("synchronize_each_step.py", 16)),
        ("tiny_kernels", "launch_bound", None),
        ("float32_products", "precision", None),
        ("elementwise_chain", "memory_bandwidth", None),
        ("emptied_cache", "memory_allocation", None),
        ("small_batch", "small_batch", None),
        ("low_occupancy", "occupancy", None),
        ("launch_blocking", "environment", None),
    ],
)
def test_a_planted_fault_is_the_first_finding(
    tmp_path: Path, name: str, kind: str, place: tuple[str, int] | None
) -> None:
    first = diagnosed(name, tmp_path).findings[0]
    assert first.type.value == kind
    assert first.severity > WARNING
    if place is not None:
        assert first.location is not None
        assert (Path(first.location.file).name, first.location.line) == place


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_script_has_no_warning(tmp_path: Path, name: str) -> None:
    report = diagnosed(name, tmp_path)
    assert [f for f in report.findings if f.severity > WARNING] == []


def test_a_repair_gains_what_the_bound_allows(tmp_path: Path) -> None:
    """3 % for the spread of two runs."""
    faulty, clean = (diagnosed(name, tmp_path) for name in ("elementwise_chain", "plain-clean"))
    rates = [r.result.samples_per_second if r.result else None for r in (faulty, clean)]
    bound = faulty.findings[0].gain_upper_bound
    assert rates[0] is not None
    assert rates[1] is not None
    assert bound is not None
    assert bound / 1.5 < rates[1] / rates[0] < 1.03 * bound


def test_kernels_lie_inside_the_window(tmp_path: Path) -> None:
    """The trace has no mark of the runtime's clock: Unix time ties them."""
    figures = diagnosed("plain-clean", tmp_path).figures
    assert figures is not None
    assert figures.idle is not None
    assert figures.kernel_share is not None
    assert 0.9 < figures.kernel_share < 1
    assert figures.idle.total == pytest.approx(1 - figures.kernel_share, abs=0.02)
