"""The one way to stderr: styled through rich on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from gpurun.errors import visible

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

PREFIX = "gpurun: "
"""Begins every plain line of ours, so that it stands out from the script's lines in a mixed log."""

Span = tuple[str, str]
"""A piece of text and its rich style ("" for none)."""

Line = Sequence[Span]

VERBATIM = "none"
"""Style of a path or command to be copied: a line that holds it is never broken by us."""

_ASCII = str.maketrans(
    {
        **dict(zip("▁▂▃▄▅▆▇█", ".,-~=+*#", strict=True)),
        "Δ": "d",
        "×": "x",
        "→": "->",
        "–": "-",
        "−": "-",
        "±": "+-",
        "·": "-",
        "…": "...",
    }
)


def plain(line: Line) -> str:
    """The text of a line without its styles."""
    return "".join(text for text, _ in line)


KERNEL = "JPY_PARENT_PID"
"""A Jupyter kernel has it. A notebook gives `!gpurun` a terminal and shows no cursor's moves."""


def on_terminal() -> bool:
    """True if stderr is a terminal that can do more than print."""
    if sys.stderr is None or os.environ.get("TERM") == "dumb" or KERNEL in os.environ:
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
    """A line as rich draws it; foreign text holds neither markup nor escape sequences."""
    from rich.text import Text

    return Text.assemble(*((visible(text), style) for text, style in line))


def gone_terminal_ignored() -> AbstractContextManager[None]:
    """A stderr that is closed, hung up or full loses our report, never the script's exit code."""
    return contextlib.suppress(OSError, ValueError)


def write_lines(lines: Sequence[Line]) -> None:
    """Write lines to stderr in the way that suits it."""
    if not on_terminal():
        write_plain([plain(line) for line in lines])
        return
    console = stderr_console()
    with gone_terminal_ignored():
        for line in lines:
            if any(style == VERBATIM for _, style in line):
                console.print(rich_text(line), soft_wrap=True)
            else:
                _print_hanging(console, rich_text(line))


def _print_hanging(console: Console, text: Text) -> None:
    """Wrap with an indent, so that continued lines differ from new ones."""
    first, *rest = text.wrap(console, max(20, console.width - len(PREFIX))) or [text]
    first.rstrip()
    console.print(first, soft_wrap=True)
    for part in rest:
        part.rstrip()
        console.print(" " * len(PREFIX), part, sep="", soft_wrap=True)


def write_plain(lines: Sequence[str]) -> None:
    """Write plain lines in one piece."""
    if sys.stderr is None or not lines:
        return
    text = "".join(f"{visible(line).rstrip()}\n" for line in lines)
    try:
        text.encode(sys.stderr.encoding or "utf-8")
    except (UnicodeError, LookupError):
        text = text.translate(_ASCII)
    with gone_terminal_ignored():
        sys.stderr.write(text)
        sys.stderr.flush()
