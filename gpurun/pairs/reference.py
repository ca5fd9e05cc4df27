"""A reference: one launch that stays alive, frozen, and takes turns with one launch after another.

Launches of different minutes differ by what else the machine did. A search that measures each
candidate in turns with the same reference compares candidates without that.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack, closing
from dataclasses import replace

from gpurun.isolation.sandbox import Sandbox
from gpurun.measure.sampler import Sampler
from gpurun.pairs.live_pair import PairSide, live_side
from gpurun.pairs.side import PairFailed, SideEnded
from gpurun.pairs.turn_ratio import Round, TurnRatio, turn_ratio
from gpurun.pairs.turn_taking import MOST_TURN_SECONDS, TurnLimits, take_turns
from gpurun.records.failure import Failure, FailureKind

LIMITS = TurnLimits(seconds=4.0, most_seconds=4.0, epoch_seconds=8.0, error=0.01)
"""Turns of a candidate: it is screened, not proven."""
STRETCH_SECONDS = 1.0
"""A candidate first has the machine for so long without a break: its throughput and memory."""
NAME = "the reference"
"""Messages call it so, and no other launch."""


class Reference:
    """Launches `side` at once. `lost`: why it takes no further turn, "" while it does.

    `await_ready` stands before the first turn. `close` ends it. An error of the launch ends it too.
    """

    def __init__(self, side: PairSide, deadline: float) -> None:
        """`deadline`: it must have warmed up by then (monotonic clock)."""
        self.lost = ""
        self._deadline = deadline
        self._ready = False
        self.settled = False
        """True once it has used up what its loaders had ready when it warmed up."""
        self._stack = ExitStack()
        try:
            self.sampler = self._stack.enter_context(closing(Sampler(side.run_dir)))
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
        if self._ready or self.lost:
            return
        try:
            self.side.await_ready(self._deadline)
            self.side.freeze()
            self._ready = True
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

    def begin(self, sandbox: Sandbox, sampler: Sampler) -> None:
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
        finally:
            self.seconds = time.monotonic() - began
        return None

    def close(self) -> None:
        """Leave it as it runs."""
        self._stack.close()

    def _turns(self) -> list[Round]:
        """Its rounds with the reference, after a stretch alone; none if the reference fails.

        `SideEnded` if it fails itself.
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
            if isinstance(failed, SideEnded) and failed.name != NAME:
                raise
            self._reference.lost = str(failed)
            return []
        finally:
            partner.freeze()  # it was thawed if it seemed to hold the other up
