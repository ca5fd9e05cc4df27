"""When launches that are compared with each other stop: all after the same number of steps."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gpurun.records.result import RunResult
from gpurun.records.spec import StopRule

WARMUP_STEPS = 10
LEAST_STEPS = 12
"""Fewest measured steps that say anything."""
WINDOW_SECONDS = 4.0
"""The length of a measured window, where the script trains for so long."""
MOST_STEPS = 5000

WHOLE = StopRule(
    min_steps=1 << 60, min_seconds=0.0, max_steps=1 << 60, warmup_steps=0, audit_steps=0
)
"""For a script that ends by itself before the window would."""


def first_rule(steps: int | None) -> StopRule:
    """The rule of a first launch: `steps` measured ones, None for as many as a window takes."""
    if steps is not None:
        return _rule(steps)
    return StopRule(
        min_steps=WARMUP_STEPS + LEAST_STEPS,
        min_seconds=WINDOW_SECONDS,
        max_steps=WARMUP_STEPS + MOST_STEPS,
        warmup_steps=WARMUP_STEPS,
        audit_steps=0,
    )


def later_rule(steps: int | None, first: Sequence[RunResult]) -> StopRule:
    """The rule of all later launches, by the first ones (one of each side): steps alike for all."""
    if steps is None:
        means = [x.step_time_ms.mean for x in first if x.step_time_ms and x.step_time_ms.mean]
        steps = max((math.ceil(1000 * WINDOW_SECONDS / mean) for mean in means), default=0)
        steps = min(max(steps, LEAST_STEPS), MOST_STEPS)
    ended = [x.steps - WARMUP_STEPS for x in first if x.status == "completed"]
    # A script that ends by itself must not be in doubt whether it is stopped before.
    if ended and min(ended) <= steps:
        return WHOLE
    return _rule(steps)


def _rule(steps: int) -> StopRule:
    total = WARMUP_STEPS + steps
    return StopRule(total, 0.0, total, WARMUP_STEPS, audit_steps=0)
