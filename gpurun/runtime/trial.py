"""A short trial inside the user's process: seeded start, hold at the first step, stop in time."""

from __future__ import annotations

import atexit
import os
import statistics
import sys
import time
from collections import deque
from typing import Any

from gpurun.records.events import StopEvent
from gpurun.records.spec import RunSpec, StopRule, TrialSpec
from gpurun.runtime import arguments, seeds, services
from gpurun.runtime.recorder import RECORDER
from gpurun.runtime.steps import CLOCK

HOLD_SECONDS = 120
"""A launcher that does not answer within this time is gone; the trial goes on."""
SPIKE = 8.0
"""A step this many times the median is a pause (compilation, evaluation), not training time."""

now = time.perf_counter_ns


def prepare(spec: TrialSpec) -> None:
    """First stage, before torch is imported."""
    seeds.seed_everything(spec.seed, spec.seed_offset)
    arguments.install()
    services.silence()


def arm(spec: RunSpec, torch: Any) -> None:
    """Second stage: audit and stop this process by the spec's rule."""
    assert spec.trial is not None
    CLOCK.every_loss = True
    from gpurun.runtime.audit import Audit

    audit = Audit(torch, spec.trial.stop.audit_steps)
    audit.begin()
    atexit.register(audit.finish)  # the script may end before the trial has seen enough
    CLOCK.listeners.append(_Trial(spec.run_dir, spec.trial, audit, torch).step)


class _Trial:
    def __init__(self, run_dir: str, spec: TrialSpec, audit: Any, torch: Any) -> None:
        self._control = os.path.join(run_dir, "control")
        self._spec = spec
        self._rule: StopRule = spec.stop
        self._audit = audit
        self._torch = torch
        self._began: int | None = None
        self._last = now()
        self._paused_ns = 0
        self._recent: deque[int] = deque(maxlen=32)

    def step(self, count: int) -> None:
        """After each step of the clock."""
        end = now()
        rule = self._rule
        if count == 1 and self._spec.hold_at_first_step:
            self._hold()
        if count <= rule.audit_steps:
            self._audit.after_step(count)
        elif count == rule.audit_steps + rule.warmup_steps:
            self._began = end
        elif self._began is not None:
            self._pause(end - self._last)
        self._last = now()
        if count >= rule.max_steps:
            self._stop("max_steps", count, end)
        elif self._began is not None and count >= rule.min_steps:
            if end - self._began - self._paused_ns >= rule.min_seconds * 1e9:
                self._stop("enough", count, end)

    def _pause(self, duration: int) -> None:
        recent = self._recent
        if len(recent) >= 5 and duration > SPIKE * statistics.median(recent):
            self._paused_ns += duration
        else:
            recent.append(duration)

    def _hold(self) -> None:
        os.makedirs(self._control, exist_ok=True)
        go = os.path.join(self._control, "go")
        with open(os.path.join(self._control, "first_step"), "w"):
            pass
        deadline = time.monotonic() + HOLD_SECONDS
        while not os.path.exists(go) and time.monotonic() < deadline:
            time.sleep(0.01)

    def _stop(self, reason: str, count: int, end: int) -> None:
        """Leave at once: no `except` or `finally` of the script may see or delay it."""
        try:
            self._audit.finish()
            CLOCK.drain()
            RECORDER.event(
                StopEvent(
                    reason=reason, steps=count, window_begin_ns=self._began, window_end_ns=end
                )
            )
            from gpurun.runtime.session import end as end_session

            end_session(self._torch)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(0)
