"""What Nsight Compute prints is read by its header, whatever the locale of the machine."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from gpurun.errors import GpurunError
from gpurun.timeline import from_ncu
from gpurun.timeline.model import Group

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


def test_each_launch_has_its_metrics() -> None:
    launches = from_ncu.read(RAW)
    assert len(launches) == 6
    gemm = launches[4]
    assert (gemm.group, gemm.tensor_core) == (Group.MATMUL, False)
    assert (gemm.sm_percent, gemm.dram_percent, gemm.occupancy_percent) == (77.05, 8.45, 12.5)
    assert (gemm.registers, gemm.shared_memory_bytes, gemm.duration_ns) == (202, 50176, 49344)
    assert (gemm.grid, gemm.block) == ((16, 1, 8), (256, 1, 1))
    assert min(gemm.occupancy_limits.values()) == gemm.occupancy_limits["registers"] == 1
    assert gemm.branch_efficiency_percent is None  # this recording did not collect it


def test_the_rules_of_the_details_page_are_joined() -> None:
    launches = from_ncu.read(RAW, DETAILS)
    rules = {name: gain for name, _, gain in launches[3].rules}
    assert rules["SOLBottleneck"] is None
    assert rules["AchievedOccupancy"] == 80.87


def test_an_absent_metric_is_not_measured(tmp_path: Path) -> None:
    path = rewritten(tmp_path, without="sm__throughput.avg.pct_of_peak_sustained_elapsed")
    assert [launch.sm_percent for launch in from_ncu.read(path)] == [None] * 6


def test_decimal_commas_are_read(tmp_path: Path) -> None:
    path = rewritten(tmp_path, comma=True)
    assert [x.others for x in from_ncu.read(path)] == [x.others for x in from_ncu.read(RAW)]


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
        ("==ERROR== ERR_NVGPUCTRPERM\n", "is no CSV of Nsight Compute"),
        ('"ID","Kernel Name","Device"\n', "holds no launch"),
        ('"ID","Kernel Name","Device"\n"0","gemm', "ends in the middle of a row"),
    ],
)
def test_what_is_no_page_is_refused_in_one_line(tmp_path: Path, content: str, said: str) -> None:
    path = tmp_path / "page.csv"
    path.write_text(content)
    with pytest.raises(GpurunError) as error:
        from_ncu.read(path)
    assert said in error.value.what
    assert "\n" not in error.value.what
