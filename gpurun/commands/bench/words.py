"""The words of a command below `bench` that names benchmarks and launches no script."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

from gpurun.arguments import Flags, split
from gpurun.errors import GpurunError

SPANS = {"h": 3600, "d": 86400, "w": 7 * 86400}


def flags_and_names(
    argv: Sequence[str], flags: Flags, command: str, most: int = 1, what: str = "benchmark"
) -> tuple[dict[str, str], list[str]]:
    """The flags and the names among them, in whatever order; `GpurunError` for too many names."""
    own: dict[str, str] = {}
    names: list[str] = []
    rest = list(argv)
    while rest:
        words = split(rest, flags)
        own |= words.own
        if words.program is None:
            break
        names.append(words.program)
        rest = list(words.args)
    if len(names) > most:
        raise GpurunError(
            f"gpurun bench {command} takes one {what}, not {names[-1]!r} too", f"name one {what}"
        )
    return own, names


def moment_of(flag: str, text: str | None, now: datetime, *, end: bool = False) -> datetime | None:
    """The moment of "2026-11-22", "2026-11-22T18:00" or "30d" (so long ago; also h and w).

    Without an offset it is local time. `end`: a date stands for the end of that day.
    """
    if text is None:
        return None
    span = re.fullmatch(r"(\d{1,6})([hdw])", text.strip().lower())
    try:
        if span:
            return now - timedelta(seconds=int(span[1]) * SPANS[span[2]])
        found = datetime.fromisoformat(re.sub(r"[Zz]$", "+00:00", text.strip()))
        if end and re.fullmatch(r"[\d-]+", text.strip()):
            found += timedelta(days=1)
        return found.astimezone(timezone.utc)
    except (ValueError, OverflowError):
        raise GpurunError(
            f"--{flag} {text!r} is no date", "write 2026-11-22, 2026-11-22T18:00 or 30d"
        ) from None
