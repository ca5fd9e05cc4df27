"""Waits for the end of an isolated launch, and gives it up if it is silent for too long."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpurun.isolation.sandbox import Sandbox
from gpurun.measure.sampler import RunSampler
from gpurun.records.failure import Failure, FailureKind
from gpurun.records.spec import FIRST_STEP, GO
from gpurun.trials.progress import Progress

POLL_SECONDS = 0.05
SAMPLE_SECONDS = 0.5

FirstStep = Callable[[Sandbox, Callable[[], None]], None]
"""Called while the script waits at its first step; the second argument lets it go on."""
Look = Callable[[Sandbox, Progress, float], Failure | None]
"""(sandbox, progress, seconds so far) → why the launch is given up, None if it is not."""


@dataclass(frozen=True)
class Supervision:
    """Rules for a running launch. `patience`: seconds without a sign of life.

    `at_first_step` is called once a script waits at its first step, `look` at each poll.
    """

    patience: float
    at_first_step: FirstStep | None = None
    look: Look = lambda *_: None


def supervise(
    sandbox: Sandbox, run_dir: Path, sampler: RunSampler, supervision: Supervision
) -> Failure | None:
    """Wait for the end of a sandbox; why it must be given up, None if it ended by itself."""
    progress = Progress(run_dir, run_dir / "output.log")
    began = changed = sampled = time.monotonic()
    control = run_dir / "control"
    at_first_step = supervision.at_first_step
    while sandbox.poll() is None:
        time.sleep(POLL_SECONDS)
        moment = time.monotonic()
        if at_first_step is not None and (control / FIRST_STEP).exists():
            at_first_step(sandbox, (control / GO).touch)
            at_first_step = None
        if progress.advanced():
            changed = moment
        if moment - sampled > SAMPLE_SECONDS:
            sampled = moment
            sampler.tick(sandbox.pid)
        given_up = supervision.look(sandbox, progress, moment - began)
        if given_up:
            return given_up
        if moment - changed > supervision.patience:
            text = f"hangs: given up after {supervision.patience:.3g} s without a sign of life"
            return Failure(FailureKind.HUNG, text)
    return None
