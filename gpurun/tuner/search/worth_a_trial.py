"""Why a knob cannot gain enough here to be tried: pure, from the facts of the script."""

from __future__ import annotations

import math

from gpurun.arguments.options import Objective
from gpurun.formatting.number_text import count, duration
from gpurun.knobs.api import Knob
from gpurun.records.facts import Facts
from gpurun.tuner import knob_calls
from gpurun.tuner.search.screening import SLOW_START_SECONDS

MOST_COMPILED_GAIN = 1.25
"""Compiling seldom makes a step on the CPU faster than this."""
MOST_ON_A_GPU = 3.0
"""And on a GPU, where half precision and CUDA graphs come with it."""
LEAST_POTENTIAL = 1.03
"""A knob that acts on a part of the step too small to gain this much is not tried."""


def not_worth_a_trial(knob: Knob, facts: Facts) -> str | None:
    """Reason why a knob cannot gain enough here, or None."""
    return _too_small_part(knob, facts) or _never_repaid(knob, facts)


def _never_repaid(knob: Knob, facts: Facts) -> str | None:
    """Reason why the whole training is too short for a knob that takes long to start, or None."""
    own, step = knob_calls.seconds_to_start(knob, facts), facts.result.step_time_ms
    if facts.planned_steps is None or step is None or own < SLOW_START_SECONDS:
        return None
    whole = facts.planned_steps * step.mean / 1000
    most = MOST_COMPILED_GAIN if facts.device == "cpu" else MOST_ON_A_GPU
    if whole * (1 - 1 / most) >= own:
        return None
    return (
        f"it takes about {own:.0f} s more to start, and the whole training "
        f"({count(facts.planned_steps, 'step')}) about {duration(whole)}"
    )


def _too_small_part(knob: Knob, facts: Facts) -> str | None:
    """Reason why the part of the step that a knob acts on is too small, or None."""
    step, split = facts.result.step_time_ms, facts.result.split
    if step is None or split is None or facts.objective != Objective.THROUGHPUT.value:
        return None
    if facts.device != "cpu" and knob.acts_on != "data":
        return None  # the parts are the host's times, which say little of the device's work
    parts = {
        "data": split.data_wait_ms,
        "model": _sum(split.forward_ms, split.backward_ms),
        "optimizer": split.optimizer_ms,
    }
    part = parts.get(knob.acts_on)
    if part is None or part >= step.mean:
        return None
    most = step.mean / max(step.mean - part, 1e-9)
    if most >= LEAST_POTENTIAL:
        return None
    return f"{knob.acts_on} is {part / step.mean:.1%} of the step: at most ×{most:.2f}"


def _sum(*parts: float | None) -> float | None:
    known = [p for p in parts if p is not None]
    return math.fsum(known) if known else None
