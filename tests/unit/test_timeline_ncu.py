"""What Nsight Compute prints is read by its header, whatever the locale of the machine."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import pytest

from gpurun.errors import GpurunError
from gpurun.timeline import from_ncu
from gpurun.timeline.model import Group, KernelMetrics

DATA = Path(__file__).resolve().parents[1] / "data" / "profiles"
RAW, DETAILS = DATA / "h200_ncu_raw_mlp.csv", DATA / "h200_ncu_details_mlp.csv"


def rewritten(tmp_path: Path, without: str = "", comma: bool = False) -> Path:
    """The raw page again: without a column, or in a locale with decimal commas."""
    with open(RAW, newline="") as file:
        rows = list(csv.reader(file))
    keep = [i for i, name in enumerate(rows[0]) if name != without]
    swap = str.maketrans({",": ".", ".": ","}) if comma else {}
    path = tmp_path / "raw.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file, quoting=csv.QUOTE_ALL)
        writer.writerow(["==PROF== Disconnected"])
        for number, row in enumerate(rows):
            words = [row[i] for i in keep]
            if number > 1:
                words = [*words[:11], *(word.translate(swap) for word in words[11:])]
            writer.writerow(words)
    text = path.read_text().replace('"==PROF== Disconnected"', "==PROF== Disconnected")
    path.write_text(text)
    return path


def launches_of(page: Path) -> Sequence[KernelMetrics]:
    found = from_ncu.read(page).kernel_metrics
    assert found is not None
    return found


def test_each_launch_has_its_metrics() -> None:
    launches = launches_of(RAW)
    assert len(launches) == 6
    gemm = launches[4]
    assert gemm.group is Group.MATMUL
    assert (gemm.sm_percent, gemm.dram_percent, gemm.occupancy_percent) == (77.05, 8.45, 12.5)
    assert (gemm.registers, gemm.shared_memory_bytes, gemm.duration_ns) == (202, 50176, 49344)
    assert (gemm.grid, gemm.block) == ((16, 1, 8), (256, 1, 1))
    assert min(gemm.occupancy_limits.values()) == gemm.occupancy_limits["registers"] == 1
    assert gemm.branch_efficiency_percent is None  # this recording did not collect it


def test_the_details_page_tells_the_same_in_other_units() -> None:
    """It is what `ncu --csv` prints; its numbers are rounded."""
    for raw, details in zip(launches_of(RAW), launches_of(DETAILS), strict=True):
        assert details.duration_ns == pytest.approx(raw.duration_ns, rel=0.01)
        assert details.shared_memory_bytes == pytest.approx(raw.shared_memory_bytes, rel=0.01)
        for name in (
            "name", "grid", "block", "registers", "sm_percent", "dram_percent", "occupancy_percent",
            "theoretical_occupancy_percent", "occupancy_limits",
        ):  # fmt: skip
            assert getattr(details, name) == getattr(raw, name), name


HEADER = (
    '"ID","Kernel Name","Device","gpu__time_duration.sum","launch__shared_mem_per_block","sm__x"'
)
LAUNCH = '"0","gemm","0","1,204.5","1.5","35.5"'


@pytest.mark.parametrize(
    ("units", "nanoseconds", "size"),
    [
        ('"","","","us","Kbyte/block","%"\n', 1_204_500, 1500),
        ('"","","","ns","byte/block","%"\n', 1204.5, 1),
        ("", 1204.5, 1),
    ],
)
def test_units_are_those_that_the_page_names(
    tmp_path: Path, units: str, nanoseconds: float, size: int
) -> None:
    page = tmp_path / "page.csv"
    page.write_text(f"\ufeff{HEADER}\n{units}{LAUNCH}\n")
    (gemm,) = launches_of(page)
    assert (gemm.duration_ns, gemm.shared_memory_bytes) == (pytest.approx(nanoseconds), size)


def test_lines_of_the_script_are_no_launches_and_messages_become_notes(tmp_path: Path) -> None:
    page = tmp_path / "page.csv"
    words = (
        "step 1, loss 2.30",
        HEADER,
        '==ERROR== Failed to profile "x".',
        LAUNCH,
        "17",
        "",
        "end",
    )
    page.write_text("\n".join(words))
    timeline = from_ncu.read(page)
    assert [kernel.name for kernel in timeline.kernel_metrics or ()] == ["gemm"]
    assert timeline.notes[0] == 'Nsight Compute: Failed to profile "x"'


@pytest.mark.parametrize("word", ["n/a", "nan", "inf", "-inf", "", "(!) no data"])
def test_words_in_place_of_numbers_are_not_measured(tmp_path: Path, word: str) -> None:
    page = tmp_path / "page.csv"
    page.write_text(f"{HEADER}\n{LAUNCH}\n{LAUNCH.replace('1,204.5', word)}\n")
    one, other = launches_of(page)
    assert (one.duration_ns, other.duration_ns) == (1204.5, None)
    assert "none of the counters" in from_ncu.read(page).notes[0]


def test_an_absent_metric_is_not_measured(tmp_path: Path) -> None:
    path = rewritten(tmp_path, without="sm__throughput.avg.pct_of_peak_sustained_elapsed")
    assert [launch.sm_percent for launch in launches_of(path)] == [None] * 6


def test_decimal_commas_are_read(tmp_path: Path) -> None:
    path = rewritten(tmp_path, comma=True)
    assert launches_of(path) == launches_of(RAW)


@pytest.mark.parametrize(
    ("text", "comma", "number"),
    [
        ("1,234.5", False, 1234.5),
        ("1.234,5", True, 1234.5),
        ("0", False, 0.0),
        ("1e-3", False, 0.001),
        ("CachePreferNone", False, None),
        ("", False, None),
        ("nan", False, None),
        ("1.2.3", False, None),
    ],
)
def test_numbers_and_words(text: str, comma: bool, number: float | None) -> None:
    assert from_ncu.parse_number(text, comma) == number


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is no CSV of Nsight Compute"),
        ("a,b\n1,2\n", "is no CSV of Nsight Compute"),
        ("==ERROR== ERR_NVGPUCTRPERM\n", "Nsight Compute: ERR_NVGPUCTRPERM"),
        ("==WARNING== No kernels were profiled.\n", "Nsight Compute: No kernels were profiled"),
        ("loss 2\n==WARNING== w.\n==ERROR== Error: e\n==ERROR== e\n", "Nsight Compute: e; w"),
        ('"ID","Kernel Name","Device"\n', "holds no launch"),
        ('"ID","Kernel Name","Device"\n"0","gemm', "ends in the middle of a row"),
        ('"ID","Kernel Name","Device"\n"0","gemm"', "ends in the middle of a row"),
    ],
)
def test_what_is_no_page_is_refused_in_one_line(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "page.csv"
    path.write_text(content)
    with pytest.raises(GpurunError) as error:
        from_ncu.read(path)
    assert said in error.value.what
    assert "\n" not in error.value.what
