"""Measures what each chosen change is worth: a live pair with and without it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpurun.records.tuning import LadderRow
from gpurun.tuner.proof.paired_proof import PairResult

SHARES_OF_BUDGET = 0.15
"""The shares may take this part of the budget: the training is waiting."""

Pair = Callable[[Mapping[str, Any], Mapping[str, Any]], PairResult]
"""(settings without the change, chosen settings) → their live pair."""


def measure_shares(
    rows: list[LadderRow],
    chosen: Mapping[str, Any],
    companions: Callable[[LadderRow], Sequence[str]],
    pair: Pair,
    room: Callable[[float], bool],
    seconds: float,
) -> str:
    """Write into each row what its change is worth, numerics first, as long as there is room.

    `companions(row)`: names of the settings that go with its change. `room(seconds)`: whether there
    is time for so much. `seconds`: what a pair is expected to take. Why it ended, "" at its end.
    """
    followers = {name for row in rows if row.kept for name in companions(row)}
    own = [n for n, row in enumerate(rows) if row.kept and row.knob not in followers]
    for number in sorted(own, key=lambda n: rows[n].effect == "pipeline"):
        row = rows[number]
        rest = {k: v for k, v in chosen.items() if k not in (row.knob, *companions(row))}
        if not room(seconds):
            return "the budget ended first"
        outcome = pair(rest, chosen)
        if outcome.gain is None:
            return outcome.failure
        seconds = outcome.seconds
        rows[number] = replace(row, speedup=outcome.gain)
    return ""
