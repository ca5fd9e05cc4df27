"""One side of a live pair: it trains in turns and waits, parked in its step hook, between them.

Two FIFOs in the control folder carry the hand-over: the launcher writes one order a turn, this side
writes one answer at the turn's end. The device is drained before the answer, so that nothing of
this side runs in the other's turn. Counted time begins where the turn's first step ends: that step
pays for caches which the other side has filled.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from gpurun.records.turns import ANSWERS, ORDERS, Turn, TurnOrder

now = time.perf_counter_ns


class Turns:
    """Takes the turns of this process, the first one after so many steps.

    `OSError` if the FIFOs are missing.
    """

    def __init__(self, control: Path, torch: Any, after_steps: int) -> None:
        # Opened for both ways, so that neither side sees an end of file while the other is opening.
        self._orders = os.open(control / ORDERS, os.O_RDWR | os.O_CLOEXEC)
        self._answers = os.open(control / ANSWERS, os.O_RDWR | os.O_CLOEXEC)
        self._process = os.getpid()
        self._cuda = torch.cuda
        self._wait_steps = after_steps
        self._order: TurnOrder | None = None
        self._began_ns = 0
        self._began_event: Any = None
        self._steps = -1
        self.first_turn: tuple[int, int] | None = None
        """Host clock at the ends of the first and the last step of the first turn."""

    def after_step(self, count: int) -> bool:
        """A step is over: go on, or end the turn and wait for the next one; True: there is none."""
        if self._order is None:
            ready = count >= self._wait_steps and os.getpid() == self._process
            return ready and self._hand_over(Turn(0, 0))
        self._steps += 1
        if self._steps == 0:
            self._began_ns, self._began_event = now(), self._mark()
        elif self._steps >= self._order.least_steps:
            if now() - self._began_ns >= self._order.nanoseconds:
                return self._hand_over(self._counted())
        return False

    def _counted(self) -> Turn:
        ended_ns, ended_event = now(), self._mark()
        self.first_turn = self.first_turn or (self._began_ns, ended_ns)
        if ended_event is None or self._began_event is None:
            return Turn(self._steps, ended_ns - self._began_ns)
        self._cuda.synchronize()
        milliseconds = self._began_event.elapsed_time(ended_event)
        return Turn(self._steps, int(milliseconds * 1e6))

    def _mark(self) -> Any:
        """The end of the work that is queued by now; None where no GPU is in use."""
        if not self._cuda.is_initialized():
            return None
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def _hand_over(self, turn: Turn) -> bool:
        """Report a turn and park until the next one; True if there is none."""
        if self._cuda.is_initialized():
            self._cuda.synchronize()
        os.write(self._answers, turn.line())
        order = TurnOrder.read(self._read_line())
        self._order, self._steps = order, -1
        return order.ends

    def _read_line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            line += os.read(self._orders, 1)
        return line
