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


def test_no_cell_and_no_line_moves_the_cursor(tmp_path: Path) -> None:
    lines = PRINT.replace('"nvml"', repr("nv\x1b[2Jml")) + "\n".join(
        (
            "from gpurun.errors import say",
            "from gpurun.report.terminal_output import write_lines",
            "write_lines([[('a\\x1b[2Jb\\rc\\nd', 'bold')]])",
            "say('e\\x1b[2Jf\\x9bg')",
        )
    )
    for columns in (None, 80):
        _, shown = in_child(lines, tmp_path, None, columns=columns, NO_COLOR="1")
        assert "\x1b[2J" not in shown
        for part in (r"nv\x1b[2Jml", r"a\x1b[2Jb\rc\nd", r"e\x1b[2Jf\x9bg"):
            assert part in shown
