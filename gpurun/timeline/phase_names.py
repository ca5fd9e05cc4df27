"""Names of ranges that say which part of a step they are: gpurun's own, and those of torch."""

from __future__ import annotations

import re

from gpurun.records.messages.profile_events import CLOCK_MARK
from gpurun.timeline.model import Phase

_PATTERNS: tuple[tuple[Phase, re.Pattern[str]], ...] = (
    (Phase.EPOCH, re.compile(r"^epoch\b", re.I)),
    (Phase.STEP, re.compile(r"^(ProfilerStep#|(train(ing)?[ _])?(step|iter(ation)?)\b)", re.I)),
    (Phase.DATA, re.compile(r"^(enumerate\(DataLoader\)#|(data|dataload(er|ing))\b)", re.I)),
    (Phase.FORWARD, re.compile(r"^forward\b", re.I)),
    (Phase.BACKWARD, re.compile(r"^backward\b", re.I)),
    (Phase.OPTIMIZER, re.compile(r"^(Optimizer\.step#|optimi[sz]er\b)", re.I)),
)


def phase_name(name: str) -> str:
    """The phase's own name for a range that marks one, else the name as it is."""
    for phase, pattern in _PATTERNS:
        if pattern.match(name):
            return phase.value
    return name


def clock_mark(name: str) -> int | None:
    """The runtime's clock that a mark carries; None for any other range."""
    if not name.startswith(CLOCK_MARK):
        return None
    text = name.removeprefix(CLOCK_MARK)
    return int(text) if text.isdigit() else None


def clock_offset(marks: list[tuple[int, int]]) -> int | None:
    """What to add to a source's times to have the runtime's clock.

    `marks`: of each mark the source's time and the runtime's. A mark is late by what it costs to
    make it, never early: the latest runtime time relative to the source's is the best.
    """
    return max((ours - theirs for theirs, ours in marks), default=None)
