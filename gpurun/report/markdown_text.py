"""Foreign text as Markdown: lines, code, lists and tables that it cannot break.

In a comment it notifies nobody and links to nothing but short hashes of commits, as gpurun writes
them. GitHub and GitLab look for `@name`, `#12`, `GH-12`, full hashes and addresses in what they
have rendered, where a backslash is gone; a character without width stays.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpurun.formatting.one_line import one_line
from gpurun.report.terminal_table import Grid

SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&!$])")
"""Characters that could begin markup anywhere in a line."""
LINKED = re.compile(
    r"(?<=@)(?=\w)|(?<=#)(?=\d)|(?<=:)(?=//)|(?i:(?<=\bgh)(?=-\d)|(?<=\b[0-9a-f])(?=[0-9a-f]{39}\b)"
    r"|(?<=www)(?=\.)|(?<=mailto)(?=:)|(?<=xmpp)(?=:))"
)
"""Places inside of what would become a mention, a reference or a link."""
BEGINS = re.compile(r"^([-+=]|\d+[.)](?=\s|$))")
"""What could begin a list or a heading at the beginning of a line."""


def escaped(words: str) -> str:
    """Foreign text inside a line."""
    return SPECIAL.sub(r"\\\1", LINKED.sub("\N{ZERO WIDTH SPACE}", one_line(words)))


def escaped_line(words: str) -> str:
    """Foreign text that begins a line."""
    return BEGINS.sub(lambda found: f"{found[1][:-1]}\\{found[1][-1]}", escaped(words))


def code_span(words: str) -> str:
    """A code span whose fence is longer than any run of backticks inside."""
    inside = one_line(words)
    fence = "`" * (max(map(len, re.findall("`+", inside)), default=0) + 1)
    pad = " " if inside.startswith("`") or inside.endswith("`") else ""
    return f"{fence}{pad}{inside}{pad}{fence}"


def bullets(items: Sequence[str]) -> str:
    """A list of foreign texts."""
    return "\n".join(f"* {escaped_line(item)}" for item in items)


def table(grid: Grid) -> str:
    """A grid as a Markdown table."""
    heading = [escaped(column.heading) for column in grid.columns]
    rule = ["--:" if column.right else ":--" for column in grid.columns]
    cells = [heading, rule, *([escaped(cell) for cell in row] for row in grid.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)
