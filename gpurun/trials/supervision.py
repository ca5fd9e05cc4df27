"""Wait for the end of an isolated launch; a silence that lasts too long ends it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from gpurun.isolation.box import Box, BoxSpec
from gpurun.measure.sampler import Sampler
from gpurun.records.failure import Failure, FailureKind
from gpurun.trials.progress import Progress

POLL_SECONDS = 0.05
SAMPLE_SECONDS = 0.5

FirstStep = Callable[[Box, Callable[[], None]], None]
"""What is done while the script waits at its first step; the second argument lets it go on."""
Look = Callable[[Box, Progress, float], Failure | None]
"""Of the box, how far it is and the seconds it has run: why it is given up, None if it is not."""


@dataclass(frozen=True)
class Supervision:
    """What is heeded while a launch runs. `patience`: seconds without a sign of life.

    `at_first_step`: for a script that was told to wait there. `look` is asked at
    each poll.
    """

    patience: float
    at_first_step: FirstStep | None = None
    look: Look = lambda *_: None


def launch(
    order: BoxSpec, run_dir: Path, supervision: Supervision
) -> tuple[int | None, float, Failure | None]:
    """Start it, and wait for its end; KeyboardInterrupt kills it first.

    Its exit code (None where it had to be killed), its seconds, and why it was given up.
    """
    began = time.monotonic()
    with closing(Sampler(run_dir)) as sampler:
        sampler.look_around()
        with Box(order) as box:
            given_up = wait(box, run_dir, sampler, supervision)
            if given_up:
                box.kill()
            exit_code = None if given_up else box.poll()
    return exit_code, time.monotonic() - began, given_up


def wait(box: Box, run_dir: Path, sampler: Sampler, supervision: Supervision) -> Failure | None:
    """Wait for the end of what runs in `box`; why it must be given up, None if it ended itself."""
    progress = Progress(run_dir, run_dir / "output.log")
    began = changed = sampled = time.monotonic()
    control = run_dir / "control"
    at_first_step = supervision.at_first_step
    while box.poll() is None:
        time.sleep(POLL_SECONDS)
        moment = time.monotonic()
        if at_first_step is not None and (control / "first_step").exists():
            at_first_step(box, (control / "go").touch)
            at_first_step = None
        if progress.advanced():
            changed = moment
        if moment - sampled > SAMPLE_SECONDS:
            sampled = moment
            sampler.tick(box.pid)
        given_up = supervision.look(box, progress, moment - began)
        if given_up:
            return given_up
        if moment - changed > supervision.patience:
            text = f"hangs: given up after {supervision.patience:.3g} s without a sign of life"
            return Failure(FailureKind.HUNG, text)
    return None
