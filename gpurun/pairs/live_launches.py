"""Launches beside each other: two as a live pair, or one that takes turns with a frozen reference.

Launches of different minutes differ by what else the machine did. A search that measures each
candidate in turns with the same reference compares candidates without that. The launches
themselves, their sandboxes and their outcomes, are `trials/trial_launcher.py`'s.
"""

from __future__ import annotations

import os
import random
import time
from contextlib import ExitStack, closing
from dataclasses import replace
from functools import partial

from gpurun.errors import GpurunError
from gpurun.isolation.isolation_mode import Mode
from gpurun.isolation.sandbox import Sandbox
from gpurun.measure.sampler import RunSampler
from gpurun.pairs.engine import PairOutcome
from gpurun.pairs.live_pair import STRETCH_SECONDS, PairEnd, PairSide, live_side, run_live_pair
from gpurun.pairs.obstacle import sharing_obstacle
from gpurun.pairs.side import PairFailed, SideEnded, SideLate
from gpurun.pairs.turn_ratio import Round, TurnRatio, turn_ratio
from gpurun.pairs.turn_taking import MOST_TURN_SECONDS, TurnLimits, take_turns
from gpurun.records.failure import Failure, FailureKind
from gpurun.trials.launch_request import LaunchRequest
from gpurun.trials.outcome import Outcome
from gpurun.trials.prestart import has_several_slots
from gpurun.trials.trial_launcher import TrialLauncher
from gpurun.trials.turn_fifos import fifo_obstacle

LIMITS = TurnLimits(seconds=4.0, most_seconds=4.0, epoch_seconds=8.0, error=0.01)
"""Turns of a candidate: it is screened, not proven."""
NAME = "the reference"
"""Messages call it so, and no other launch."""
TOO_FEW = "the turns of both sides were too few"


class Reference:
    """Launches `side` at once. `lost`: why it takes no further turn, "" while it does.

    `await_ready` stands before the first turn. `close` ends it. An error of the launch ends it too.
    """

    def __init__(self, side: PairSide, deadline: float) -> None:
        """`deadline`: it must have warmed up by then (monotonic clock)."""
        self.lost, self._deadline = "", deadline
        self.settled = False
        """True once it has used up what its loaders had ready when it warmed up."""
        self._stack = ExitStack()
        try:
            self.sampler = self._stack.enter_context(closing(RunSampler(side.run_dir)))
            self.sampler.look_around()
            self._sandbox = self._stack.enter_context(side.start(False))
            made = live_side(replace(side, name=NAME), self._sandbox, self.sampler)
            self.side = self._stack.enter_context(closing(made))
        except BaseException:
            self._stack.close()
            raise

    @property
    def pid(self) -> int:
        """The first process of its sandbox."""
        return self._sandbox.pid

    @property
    def ended(self) -> bool:
        """True if its process is over."""
        return self._sandbox.poll() is not None

    def await_ready(self) -> None:
        """Wait until it has warmed up, and freeze it; `lost` says why it never did."""
        if self.side.frozen or self.lost:
            return
        try:
            self.side.await_ready(self._deadline)
            self.side.freeze()
        except PairFailed as failed:
            self.lost = str(failed)

    def close(self) -> None:
        """End it; nothing of it stays frozen."""
        self._stack.close()


class BesideReference:
    """One launch that takes turns with the reference once it has warmed up.

    `ratio`: its step time over the reference's, None where too few turns were taken. `begun`:
    whether any were. `seconds`: what they took.
    """

    def __init__(self, reference: Reference, candidate: PairSide, draws: random.Random) -> None:
        self.ratio: TurnRatio | None = None
        self.seconds = 0.0
        self.begun = False
        self._reference, self._candidate, self._draws = reference, candidate, draws
        self._stack = ExitStack()

    def begin(self, sandbox: Sandbox, sampler: RunSampler) -> None:
        """It was started."""
        side = live_side(self._candidate, sandbox, sampler)
        self._side = self._stack.enter_context(closing(side))

    def look(self) -> Failure | None:
        """Take the turns if it is ready for them; why it must be given up, None if it need not."""
        if self.begun or not self._side.answered:
            return None
        self.begun = True
        began = time.monotonic()
        try:
            self.ratio = turn_ratio(self._turns())
            self._side.end()
        except SideEnded as ended:
            if ended.exit_code is None:
                return Failure(FailureKind.HUNG, str(ended))
        except PairFailed as failed:
            return Failure(FailureKind.NOT_LIVE, str(failed))
        finally:
            self.seconds = time.monotonic() - began
        return None

    def close(self) -> None:
        """Leave it as it runs."""
        self._stack.close()

    def _turns(self) -> list[Round]:
        """Its rounds with the reference, after a stretch alone; none if the reference fails.

        `PairFailed` if it fails itself.
        """
        side, partner = self._side, self._reference.side
        try:
            side.await_ready()
            self._reference.await_ready()
            side.freeze()
            nanoseconds = int(STRETCH_SECONDS * 1e9)
            side.take(nanoseconds, partner)
            if self._reference.lost:
                return []
            if not self._reference.settled:
                partner.take(nanoseconds, side)
                self._reference.settled = True
            enough = LIMITS.enough(time.monotonic() + MOST_TURN_SECONDS)
            rounds = take_turns((partner, side), self._draws, enough)
            if self._reference.ended:
                self._reference.lost = f"{NAME} came to its end"
            return rounds
        except PairFailed as failed:
            if failed.name != NAME:
                raise
            self._reference.lost = str(failed)
            return []
        finally:
            partner.freeze()  # it was thawed if it seemed to hold the other up


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
        draws = random.Random(str(request.run_dir))
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
            return PairOutcome(None, None, None, in_turn)
        requests, launcher = (first, second), self._launcher
        began = time.monotonic()
        draws = random.Random(str(first.run_dir))
        try:
            sides = (self._side(first), self._side(second))
            started = partial(self._start_beside_pair, second)
            ready = launcher.prestarted.stop
            deadline = min(first.deadline, began + first.limit_seconds)
            end = run_live_pair(sides, started, ready, draws, deadline, first.hurry_at)
        except GpurunError as error:
            return PairOutcome(None, None, None, error.what)
        finally:
            launcher.prestarted.go_on()
        outcomes = [
            launcher.conclude(request, code, end.seconds / 2, _given_up(end, side)).as_side(peak)
            for side, (request, code, peak) in enumerate(
                zip(requests, end.exit_codes, end.peaks, strict=True)
            )
        ]
        failure = "" if end.ratio is not None else str(end.failed or TOO_FEW)
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
    if end.failed is None or end.exit_codes[side] is not None:
        return None
    kind = FailureKind.HUNG if end.exit_codes[1 - side] is None else FailureKind.PARTNER_ENDED
    late = isinstance(end.failed, SideLate)
    return Failure(FailureKind.OUT_OF_TIME if late else kind, str(end.failed))
