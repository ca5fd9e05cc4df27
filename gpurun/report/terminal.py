"""The one way to stderr: styled through rich on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

PREFIX = "gpurun: "
"""Begins every plain line of ours, so that it can be told from the script's in a mixed log."""

Span = tuple[str, str]
"""A piece of text and its rich style ("" for none)."""

Line = Sequence[Span]

_ASCII = str.maketrans(
    {"×": "x", "→": "->", "–": "-", "−": "-", "±": "+-", "·": "-", "…": "...", "█": "#"}
)


def plain(line: Line) -> str:
    """The text of a line without its styles."""
    return "".join(text for text, _ in line)


def on_terminal() -> bool:
    """Whether stderr is a terminal that can do more than print."""
    if sys.stderr is None or os.environ.get("TERM") == "dumb":
        return False
    try:
        return sys.stderr.isatty()
    except ValueError:  # closed
        return False


def stderr_console() -> Console:
    """A rich console on stderr; with NO_COLOR it writes no styles at all, bold included."""
    from rich.console import Console

    if os.environ.get("NO_COLOR"):
        return Console(stderr=True, highlight=False, color_system=None)
    return Console(stderr=True, highlight=False)


def rich_text(line: Line) -> Text:
    """A line as rich draws it; brackets in foreign text are no markup."""
    from rich.text import Text

    return Text.assemble(*line)


def write_lines(lines: Sequence[Line]) -> None:
    """Write lines to stderr in the way that suits it."""
    if not on_terminal():
        write_plain([plain(line) for line in lines])
        return
    console = stderr_console()
    for line in lines:
        console.print(rich_text(line), soft_wrap=False)


def write_plain(lines: Sequence[str]) -> None:
    """Write plain lines in one piece; a stderr that is gone or full is nobody's error."""
    if sys.stderr is None or not lines:
        return
    text = "".join(f"{line.rstrip()}\n" for line in lines)
    try:
        text.encode(sys.stderr.encoding or "utf-8")
    except (UnicodeError, LookupError):
        text = text.translate(_ASCII)
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        pass  # The report is lost, but the exit code must still be the script's.
