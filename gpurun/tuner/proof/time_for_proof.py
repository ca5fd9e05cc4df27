"""How much of the budget the search leaves for the proof of what it found."""

from __future__ import annotations

PROOF_ROUNDS = 4
"""So many rounds of launches in turn: a launch of each side."""
LIVE_PAIRS = 3
"""Or so many live pairs: two settle most proofs, and the third one those that differ."""
LEAST_PROOF_ROUNDS = 2
"""So many even where they take most of the budget: fewer can show nothing."""
TRUST = 0.5
"""The first round begins if there is time for this part of what it is expected to take: that is a
guess from other launches, and a tuning without any round has proven nothing. As long as nothing was
found, no more is kept for the proof: the same command goes on with it."""
PROOF_SHARE = 0.6
"""Further rounds may keep at most this part of the budget for themselves."""


def kept_for_proof(round_seconds: float, budget_seconds: float, live: bool) -> float:
    """Seconds that the search leaves for the proof of its finalist.

    `round_seconds`: of a live pair, or of a launch of each side. However clear a gain is, three
    launches that differ by a third among themselves cannot prove it.
    """
    rounds = LIVE_PAIRS if live else PROOF_ROUNDS
    wanted = min(rounds * round_seconds, PROOF_SHARE * budget_seconds)
    return max(least_for_proof(round_seconds), wanted)


def least_for_proof(round_seconds: float) -> float:
    """Seconds that the shortest proof takes."""
    return LEAST_PROOF_ROUNDS * round_seconds
