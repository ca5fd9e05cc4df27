"""A trace's millions of records fit in memory and read as they were written."""

from __future__ import annotations

import sys

from gpurun.timeline.columns import Columns
from gpurun.timeline.model import Group, Kernel, KernelKind, Range

GEMM = KernelKind("gemm", Group.MATMUL, True, (1, 2, 3), (128, 1, 1), 90)


def test_columns_read_as_the_records_that_were_added() -> None:
    columns = Columns(Kernel)
    columns.add(10, 20, 0, 7, 1, GEMM)
    columns.add(30, 45, 0, 7, 2, KernelKind("gemm", Group.MATMUL, True, (1, 2, 3), (128, 1, 1)))
    expected = (
        Kernel(10, 20, 0, 7, 1, GEMM),
        Kernel(30, 45, 0, 7, 2, KernelKind("gemm", Group.MATMUL, True, (1, 2, 3), (128, 1, 1))),
    )
    assert tuple(columns) == expected
    assert columns[-1] == expected[1]
    assert columns[:1] == expected[:1]
    assert columns[0].name == "gemm"
    assert columns[0].kind.tensor_core


def test_columns_are_sorted_by_their_begin() -> None:
    columns = Columns(Range)
    for begin in (5, 1, 3):
        columns.add(begin, begin + 1, 0, f"at {begin}")
    assert [each.name for each in columns.sorted()] == ["at 1", "at 3", "at 5"]
    assert [each.name for each in columns] == ["at 5", "at 1", "at 3"]


def test_a_value_that_repeats_is_kept_once() -> None:
    columns = Columns(Range)
    for begin in range(10_000):
        columns.add(begin, begin + 1, 0, f"step {begin % 3}")
    assert sum(sys.getsizeof(column) for column in columns._columns) < 350_000
    assert columns[0].name is columns[3].name
