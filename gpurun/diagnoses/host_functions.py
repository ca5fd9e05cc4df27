"""Functions of a host profile: which of them holds most of a time, and which only wait."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.records.finding import Location
from gpurun.records.messages.profile_events import FunctionSamples

MOST = 0.6
"""A function that holds this part of a time is the place to look at."""
COMPUTES = 0.1
"""A function whose own lines take less of its time leaves the work to others."""
ALIKE = 1.1
"""Times that differ by no more than this factor are the same."""
WAITING = (
    "sleep", "read", "recv", "open", "poll", "select", "acquire", "wait", "readinto", "get",
    "readline", "seek", "stat", "connect", "fsync", "join", "result", "communicate",
)  # fmt: skip
"""Functions in which a thread waits for storage, network or others."""


def innermost(functions: Sequence[FunctionSamples]) -> FunctionSamples | None:
    """The innermost of the user's functions that takes most of the time of all of them.

    Callers take about as long as what they call, or a little less where others call it too: of such
    the one that computes most itself; where all leave that to libraries, the shortest is innermost.
    """
    most = MOST * sum(f.self_seconds for f in functions)
    holding = [f for f in functions if f.users_own and f.total_seconds >= most]
    least = min((f.total_seconds for f in holding), default=0.0)
    alike = [f for f in holding if f.total_seconds <= ALIKE * least]
    computes = (f for f in alike if f.self_seconds >= COMPUTES * f.total_seconds)
    shortest = min(alike, key=lambda f: f.total_seconds, default=None)
    return max(computes, key=lambda f: (f.self_seconds, -f.total_seconds), default=shortest)


def line_of(function: FunctionSamples | None) -> Location | None:
    """The line in which most of a function's time passes."""
    return None if function is None else Location(function.file, function.line, function.function)


def waiting_seconds(function: FunctionSamples) -> float:
    """Seconds in which a function waited: as the kernel counts, else by what it is."""
    if function.blocked_seconds is not None:
        return function.blocked_seconds
    return function.self_seconds if bare_name(function) in WAITING else 0.0


def bare_name(function: FunctionSamples) -> str:
    """The bare name: "<built-in method time.sleep>" is "sleep"."""
    return function.function.strip("<>").split()[-1].rpartition(".")[2]
