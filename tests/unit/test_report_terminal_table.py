"""Tables of the other commands."""

from __future__ import annotations

from pathlib import Path

from tests.unit.report_records import in_child

PRINT = """
from gpurun.report.terminal_table import print_table
print_table("Tools [x]", ["tool", "what its absence costs"], [
    ["nsys", "no timeline of kernels from the system's own view, so another is used"],
    ["nvml", ""],
])
"""


def test_a_log_gets_aligned_columns(tmp_path: Path) -> None:
    stdout, stderr = in_child(PRINT, tmp_path, None)
    assert stdout == ""
    assert stderr.splitlines()[1:] == [
        "  tool  what its absence costs",
        "  nsys  no timeline of kernels from the system's own view, so another is used",
        "  nvml",
    ]


def test_a_narrow_terminal_wraps_the_last_column_only(tmp_path: Path) -> None:
    _, shown = in_child(PRINT, tmp_path, None, columns=40, NO_COLOR="1")
    assert shown.splitlines()[0] == "Tools [x]"
    assert max(map(len, shown.splitlines())) <= 40
    assert "  nsys  no timeline" in shown
