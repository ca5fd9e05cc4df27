"""Which parts of some settings make a run go wrong: delta debugging (Zeller, Hildebrandt 2002).

Halves of the settings are tested first. Where no half goes wrong by itself, smaller parts are left
out one at a time, so that settings which only go wrong together are found together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeAlias

from gpurun.records.settings_reports import LaunchState
from gpurun.records.tuning import SavedSettings

KnobGroup: TypeAlias = "tuple[str, ...]"
"""Names of knobs that are left out together."""
Test: TypeAlias = "Callable[[Sequence[KnobGroup]], LaunchState]"
"""Launches with these parts alone."""


def parts_of(saved: SavedSettings) -> tuple[KnobGroup, ...]:
    """The names of the settings, those together that go with one another."""
    found: dict[str, set[str]] = {name: {name} for name in saved.settings}
    for name, needed in saved.companions.items():
        linked = {other for one in (name, *needed) for other in found.get(one, ())}
        found.update(dict.fromkeys(linked, linked))
    groups = (tuple(name for name in found if name in linked) for linked in found.values())
    return tuple(dict.fromkeys(groups))


def culprits(parts: Sequence[KnobGroup], test: Test) -> tuple[list[list[KnobGroup]], LaunchState]:
    """Sets of parts that go wrong, each as small as can be, and the outcome without all of them.

    `parts` together go wrong. A launch without an outcome counts as one that went well.
    """
    found: list[list[KnobGroup]] = []
    rest, state = list(parts), LaunchState.BAD
    while rest and state is LaunchState.BAD:
        found.append(_smallest(rest, test))
        rest = [part for part in rest if part not in found[-1]]
        state = test(rest)
    return found, state


def _smallest(parts: Sequence[KnobGroup], test: Test) -> list[KnobGroup]:
    """A set that goes wrong and of which no part can be left out."""
    bad, pieces = list(parts), 2
    while len(bad) > 1:
        chunks = _split(bad, pieces)
        smaller = next((c for c in chunks if test(c) is LaunchState.BAD), None)
        if smaller is not None:
            bad, pieces = smaller, 2
            continue
        others = [[part for part in bad if part not in chunk] for chunk in chunks]
        # of two halves each is the other's complement
        smaller = next((c for c in others if pieces > 2 and test(c) is LaunchState.BAD), None)
        if smaller is not None:
            bad, pieces = smaller, max(pieces - 1, 2)
        elif pieces < len(bad):
            pieces = min(2 * pieces, len(bad))
        else:
            break
    return bad


def _split(parts: Sequence[KnobGroup], pieces: int) -> list[list[KnobGroup]]:
    """Parts in so many pieces of nearly the same length."""
    ends = [round(n * len(parts) / pieces) for n in range(pieces + 1)]
    return [list(parts[begin:end]) for begin, end in pairwise(ends) if end > begin]
