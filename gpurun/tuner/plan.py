"""How long a trial must be: long enough to measure, alike for all, cheap enough for the budget."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from gpurun.records.result import RunResult
from gpurun.records.spec import StopRule

AUDIT_STEPS = 8
WARMUP_STEPS = 4
PROBE_STEPS = 24
PROBE_SECONDS = 1.0
WINDOW_SECONDS = 4.0
"""What a measured window should last at the baseline's speed."""
SHORTEST_SECONDS = 1.5
"""And at least lasts at any speed."""
MEASURED_STEPS = 12
"""Fewest measured steps that say anything."""
LONGEST_EPOCH_SECONDS = 8.0
"""An epoch up to this long is measured whole: opening the workers is part of the price."""
MAX_STEPS = 5000

NEEDED_STEPS = AUDIT_STEPS + WARMUP_STEPS + MEASURED_STEPS
"""A script that ends before this many steps cannot be tuned."""

PROBE = StopRule(
    min_steps=PROBE_STEPS,
    min_seconds=PROBE_SECONDS,
    max_steps=MAX_STEPS,
    warmup_steps=WARMUP_STEPS,
    audit_steps=AUDIT_STEPS,
)
"""The first trial: nothing is known yet."""


def plan(probe: RunResult, steps_per_epoch: int | None) -> StopRule:
    """The stop rule of every later trial, from what the first one showed."""
    step_seconds = probe.step_time_ms.mean / 1000 if probe.step_time_ms else 1.0
    measured = max(MEASURED_STEPS, math.ceil(WINDOW_SECONDS / max(step_seconds, 1e-6)))
    if steps_per_epoch and steps_per_epoch >= MEASURED_STEPS:
        if steps_per_epoch * step_seconds <= LONGEST_EPOCH_SECONDS:
            measured = steps_per_epoch * math.ceil(measured / steps_per_epoch)
    if probe.status == "completed":
        measured = min(measured, probe.steps - AUDIT_STEPS - WARMUP_STEPS)
    lead = AUDIT_STEPS + WARMUP_STEPS
    return StopRule(
        min_steps=min(lead + measured, MAX_STEPS),
        min_seconds=SHORTEST_SECONDS,
        max_steps=MAX_STEPS,
        warmup_steps=WARMUP_STEPS,
        audit_steps=AUDIT_STEPS,
    )


def with_read_ahead(rule: StopRule, settings: Mapping[str, Any], prefetch: int) -> StopRule:
    """The rule under loader workers: what they read ahead must be consumed before measuring."""
    workers = settings.get("loader_workers") or 0
    ahead = int(workers) * int(settings.get("loader_prefetch") or prefetch) if workers else 0
    extra = max(0, ahead + 2 - rule.warmup_steps)
    if not workers or not extra:
        return rule
    return replace(rule, warmup_steps=rule.warmup_steps + extra, min_steps=rule.min_steps + extra)
