"""Launches beside each other: two as a live pair, or one that takes turns with a frozen reference.

The launches themselves, their sandboxes and their outcomes, are `trials/trial_launcher.py`'s.
"""

from __future__ import annotations

import os
import random
import time
from dataclasses import replace
from functools import partial

from gpurun.errors import GpurunError
from gpurun.isolation.isolation_mode import Mode
from gpurun.pairs.engine import PairOutcome
from gpurun.pairs.live_pair import PairEnd, PairSide, run_live_pair
from gpurun.pairs.obstacle import sharing_obstacle
from gpurun.pairs.reference import BesideReference, Reference
from gpurun.pairs.turn_ratio import TurnRatio
from gpurun.records.failure import Failure, FailureKind
from gpurun.trials.launch_request import LaunchRequest
from gpurun.trials.outcome import Outcome
from gpurun.trials.prestart import has_several_slots
from gpurun.trials.trial_launcher import TrialLauncher
from gpurun.trials.turn_fifos import fifo_obstacle


class LiveLaunches:
    """Live pairs of one `launcher`, and launches that take turns with its reference."""

    def __init__(self, launcher: TrialLauncher) -> None:
        self._launcher = launcher
        self._reference: Reference | None = None

    def in_turn_reason(self, *, ranks: bool) -> str:
        """Reason why two launches cannot be a live pair, or "". `ranks`: they run in several."""
        if ranks:
            return "the script runs in several ranks"
        if self._launcher.mode is Mode.IN_PLACE:
            return "trials work on the real files"
        return sharing_obstacle(os.environ) or fifo_obstacle(self._launcher.folder)

    # -- beside the reference ------------------------------------------------------------------

    def start_reference(self, request: LaunchRequest) -> str:
        """Launch what later launches take turns with; why that cannot be, "" if it can.

        Beside a GPU it warms up while the first of them starts; else it waits, frozen, before that:
        both would compute on the same cores.
        """
        deadline = time.monotonic() + request.limit_seconds
        self.end_reference()
        if in_turn := self.in_turn_reason(ranks=bool(request.ranks)):
            return in_turn
        try:
            reference = Reference(self._side(request), deadline)
        except GpurunError as error:
            return error.what
        self._reference = self._launcher.waiting = reference
        if not reference.sampler.sees_gpus:
            reference.await_ready()
        if reference.lost:
            self.end_reference()
        return reference.lost

    @property
    def has_reference(self) -> bool:
        """True if one waits for a launch to take turns with."""
        return self._reference is not None

    def end_reference(self) -> None:
        """End the reference, if there is one."""
        reference, self._reference, self._launcher.waiting = self._reference, None, None
        if reference is not None:
            reference.close()

    def run_beside(self, request: LaunchRequest) -> tuple[Outcome, TurnRatio | None]:
        """A launch that takes turns with the reference, and its step time over the reference's.

        None where too few turns were taken. Without a reference it is launched as any other.
        """
        reference = self._reference
        if reference is None:
            return self._launcher.run(request), None
        draws = random.Random(self._launcher.launched)
        turns = BesideReference(reference, self._side(request), draws)
        outcome = self._launcher.run(request, turns=turns)
        if reference.lost:
            self.end_reference()
        return replace(outcome, in_turns=turns.begun), turns.ratio

    # -- live pairs ----------------------------------------------------------------------------

    def run_pair(self, first: LaunchRequest, second: LaunchRequest) -> PairOutcome[Outcome]:
        """Launch two requests as a live pair, and wait for its end.

        It is over by the limits of the first; with few turns by then it is a failure.
        """
        if in_turn := self.in_turn_reason(ranks=bool(first.ranks or second.ranks)):
            return PairOutcome(None, None, None, Failure(FailureKind.NOT_LIVE, in_turn))
        requests, launcher = (first, second), self._launcher
        began = time.monotonic()
        draws = random.Random(launcher.launched)
        try:
            sides = (self._side(first), self._side(second))
            started = partial(self._start_beside_pair, second)
            ready = launcher.prestarted.stop
            deadline = min(first.deadline, began + first.limit_seconds)
            end = run_live_pair(sides, started, ready, draws, deadline, first.hurry_at)
        except GpurunError as error:
            failed = Failure(FailureKind.NOT_STARTED, error.what)
            return PairOutcome(None, None, None, failed)
        finally:
            launcher.prestarted.go_on()
        outcomes = [
            launcher.conclude(request, code, end.seconds / 2, _given_up(end, side)).as_side(peak)
            for side, (request, code, peak) in enumerate(
                zip(requests, end.exit_codes, end.peaks, strict=True)
            )
        ]
        failure = _pair_failure(end, outcomes)
        return PairOutcome(outcomes[0], outcomes[1], end.ratio, failure)

    def _side(self, request: LaunchRequest) -> PairSide:
        return PairSide(
            name=request.name,
            start=partial(self._launcher.start, request, live=True),
            run_dir=request.run_dir,
            patience_seconds=self._launcher.patience(request),
        )

    def _start_beside_pair(self, second: LaunchRequest) -> tuple[int, ...]:
        """Have the sides of the next pair import while this one's start; the processes.

        Where cores are few all of them would only wait for one another.
        """
        if has_several_slots():
            self._launcher.start_following(second)
        return self._launcher.prestarted.pids


def _given_up(end: PairEnd, side: int) -> Failure | None:
    """Reason why a side of a failed pair was ended, None for one that ended by itself."""
    if not end.failure or end.exit_codes[side] is not None:
        return None
    if end.late:
        return Failure(FailureKind.OUT_OF_TIME, end.failure)
    partner_ended = end.exit_codes[1 - side] is not None
    return Failure(FailureKind.PARTNER_ENDED if partner_ended else FailureKind.HUNG, end.failure)


def _pair_failure(end: PairEnd, outcomes: list[Outcome]) -> Failure | None:
    """Reason why there is no ratio: what befell the side that failed first."""
    if end.failure:
        failures = [x.failure for x in outcomes if x.failure is not None]
        own = [x for x in failures if x.kind is not FailureKind.PARTNER_ENDED]
        kind = own[0].kind if own else FailureKind.TOO_FEW_STEPS
        return Failure(kind, end.failure)
    if end.ratio is None:
        return Failure(FailureKind.TOO_FEW_STEPS, "the turns of both sides were too few")
    return None
