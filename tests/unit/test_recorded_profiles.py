"""Planted faults on a GPU, as recorded: each is the first finding, and clean scripts have none."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from gpurun.commands.diagnosed_launch import diagnose_run
from gpurun.errors import GpurunError
from gpurun.measure.run_summary import read_records
from gpurun.records.diagnosis import DiagnosisReport
from gpurun.records.finding import WARNING
from tests.conftest import REPOSITORY
from tests.recordings import unpacked
from tests.unit.diagnosis_cases import gains_beyond_their_share

RECORDED = REPOSITORY / "tests" / "data" / "h100_profiles"
CLEAN = (
    "elementwise_chain-clean",
    "emptied_cache-clean",
    "float32_products-clean",
    "low_occupancy-clean",
    "pageable_copies-clean",
    "read_in_forward-clean",
    "synchronize_each_step-clean",
    "tiny_kernels-clean",
)


Diagnosed = Callable[[str], DiagnosisReport]


@pytest.fixture(scope="module")
def diagnosed(tmp_path_factory: pytest.TempPathFactory) -> Diagnosed:
    """The diagnosis of a recording, made once."""
    folder = tmp_path_factory.mktemp("recorded")

    @cache
    def diagnosis(name: str) -> DiagnosisReport:
        run = unpacked(name, folder, RECORDED)
        return diagnose_run(run, read_records(run))

    return diagnosis


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
    diagnosed: Diagnosed, name: str, kind: str, place: tuple[str, int] | None
) -> None:
    first = diagnosed(name).findings[0]
    assert first.type.value == kind
    assert first.severity > WARNING
    if place is not None:
        assert first.location is not None
        assert (Path(first.location.file).name, first.location.line) == place


@pytest.mark.parametrize(
    "name", sorted(each.name.removesuffix(".tar.xz") for each in RECORDED.glob("*.tar.xz"))
)
def test_no_gain_is_larger_than_the_share_that_its_sentence_tells(
    diagnosed: Diagnosed, name: str
) -> None:
    """Copies that took 0.7 % of the step gained ×1.10: the host took 9 % of it to start them."""
    assert gains_beyond_their_share(diagnosed(name).findings) == []


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_script_has_no_warning(diagnosed: Diagnosed, name: str) -> None:
    report = diagnosed(name)
    assert [f for f in report.findings if f.severity > WARNING] == []


def median_step(report: DiagnosisReport) -> float:
    assert report.result is not None
    assert report.result.step_time_ms is not None
    return report.result.step_time_ms.p50


@pytest.mark.parametrize(
    ("name", "off"),
    [
        ("elementwise_chain", 0.04),
        ("pageable_copies", 0.06),
        ("synchronize_each_step", 0.05),
        ("tiny_kernels", 0.10),
    ],
)
def test_a_repair_gains_what_the_replay_says(diagnosed: Diagnosed, name: str, off: float) -> None:
    """`off`: of the faulty step, by which the repaired one may differ from the replayed repair.

    The repaired twins of copies and waits ran on a hotter GPU, with slower kernels.
    """
    faulty, clean = (diagnosed(each) for each in (name, f"{name}-clean"))
    gain = faulty.findings[0].replayed_gain
    assert gain is not None
    before, after = median_step(faulty), median_step(clean)
    assert abs(before / gain - after) < off * before


def test_a_repair_gains_less_than_the_bound_where_nothing_was_replayed(
    diagnosed: Diagnosed,
) -> None:
    """3 % for the spread of two runs. A bound that is far too wide tells nothing."""
    faulty, clean = (diagnosed(f"read_in_forward{end}") for end in ("", "-clean"))
    bound, gain = faulty.findings[0].gain_upper_bound, median_step(faulty) / median_step(clean)
    assert faulty.findings[0].replayed_gain is None
    assert bound is not None
    assert gain < 1.03 * bound
    assert bound - 1 < 1.5 * (gain - 1)


@pytest.mark.parametrize(
    ("event", "field", "value"),
    [
        ("profile", "begin_ns", 2**63),
        ("profile", "phases", [["step", 1, 2**63]]),
        ("host_samples", "moments", [[1, [[10**6, 1]]]]),
    ],
)
def test_impossible_values_of_a_profile_are_refused(
    tmp_path: Path, event: str, field: str, value: object
) -> None:
    run = unpacked("synchronize_each_step", tmp_path, RECORDED)
    (events,) = run.glob("events-*.jsonl")
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    for line in lines:
        if line["event"] == event:
            line[field] = value
    events.write_text("\n".join(map(json.dumps, lines)) + "\n")
    with pytest.raises(GpurunError, match="is damaged: it has impossible values"):
        diagnose_run(run, read_records(run))


def test_kernels_lie_inside_the_window(diagnosed: Diagnosed) -> None:
    """The trace has no mark of the runtime's clock: Unix time ties them."""
    figures = diagnosed("emptied_cache-clean").figures
    assert figures is not None
    assert figures.idle is not None
    assert figures.kernel_share is not None
    assert 0.9 < figures.kernel_share < 1
    assert figures.idle.total == pytest.approx(1 - figures.kernel_share, abs=0.02)
    assert figures.idle.total < 1 - figures.kernel_share, "the first step fills an idle GPU"
