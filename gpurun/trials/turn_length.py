"""How long one turn of a live pair is."""

from __future__ import annotations

from collections.abc import Sequence

LEAST_STEPS = 5
"""Counted steps of a turn at least."""
LEAST_NS = 15_000_000
"""A turn's counted time at least: shorter ones measure the hand-over."""
MOST_NS = 500_000_000
"""Longer turns see other disturbances than their neighbours."""
RECENT = 8
"""The usual hand-over is the median of so many."""
HANDOVER_SHARE = 0.1
"""Hand-overs may take this share of a turn; longer ones lengthen the turns."""


def turn_nanoseconds(longest_step: int, handovers: Sequence[int]) -> int:
    """Counted time of the next turn of each side, from the longer step and the hand-overs so far.

    All in nanoseconds. It has room for the least steps, and hand-overs take their share at most.
    """
    recent = sorted(handovers[-RECENT:])
    steps = LEAST_STEPS * longest_step
    wanted = max(LEAST_NS, steps, int(recent[len(recent) // 2] / HANDOVER_SHARE))
    return min(wanted, max(MOST_NS, steps))
