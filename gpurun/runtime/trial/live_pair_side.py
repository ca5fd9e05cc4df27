"""One side of a live pair: it trains in turns and waits, parked in its step hook, between them.

Two FIFOs in the control folder carry the hand-over: the launcher writes one order a turn, this side
writes one answer at the turn's end. The device is drained before the answer, so that nothing of
this side runs in the other's turn. Counted time begins where the turn's first step ends: that step
pays for caches which the other side has filled.

Loader workers would go on until they are frozen, and what they wait for (a disk) goes on even then.
So they are stopped at once. A turn begins to count when the batches that were made meanwhile are
used up. It ends with as many ready batches as it began with, if a few steps more lead there. The
stock goes from turn to turn, so that over all turns as many batches are made as are used. The first
turn lets the stock settle. Where it then stays above what the workers deliver at once, nothing
waits for them, and a turn may end anywhere. A turn that is to count whole epochs goes on to the
same step of a later one.
"""

from __future__ import annotations

import os
import resource
import signal
import time
from pathlib import Path

import torch

from gpurun.records.messages.turns import ANSWERS, ORDERS, Turn, TurnEvent, TurnOrder
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.observe.prefetched_batches import EMPTY, PrefetchedBatches, PrefetchLevel, send

now = time.perf_counter_ns
LEVEL_VARIES = 1
"""A stock that keeps its level is this many batches below it at times."""


class Turns:
    """Takes the turns of this process; the first one begins after `after_steps` steps.

    `OSError` if the FIFOs are missing. Without `prefetched` loaders are not looked at.
    """

    def __init__(
        self, control: Path, after_steps: int, prefetched: PrefetchedBatches | None = None
    ) -> None:
        # Opened for both ways, so that neither side sees an end of file while the other is opening.
        self._orders = os.open(control / ORDERS, os.O_RDWR | os.O_CLOEXEC)
        self._answers = os.open(control / ANSWERS, os.O_RDWR | os.O_CLOEXEC)
        self._process = os.getpid()
        self._wait_steps = after_steps
        self._prefetched = prefetched or PrefetchedBatches()
        self._order: TurnOrder | None = None
        self._began_ns = 0
        self._began_event: torch.cuda.Event | None = None
        self._began_level = self._left_level = EMPTY
        self._steps = -1
        self._ordered_steps = 0
        """Steps of this turn when it had lasted as long as was ordered; 0 before."""
        self._used_up = False
        self._settled: PrefetchLevel | None = None
        """The stock at the end of the first turn."""
        self._stopped: list[int] = []
        self._passes = 0
        self._in_epoch = self._began_in_epoch = 0
        """Steps since the epoch began: now, and where the turn began to count."""
        self._epoch_steps = 0
        self._epoch_starts = 0

    def after_step(self, count: int) -> bool:
        """A step is over: go on, or end the turn and wait for the next one; True: there is none."""
        self._in_epoch += 1
        if self._passes != self._prefetched.passes:
            self._epoch_started()
        if self._order is None:
            if count < self._wait_steps or os.getpid() != self._process:
                return False
            self._stop_workers()
            return self._hand_over(Turn(0, 0), now())
        self._steps += 1
        if self._steps == 0:
            self._begin()
        elif self._steps >= self._order.least_steps:
            elapsed = now() - self._began_ns
            if elapsed >= self._order.nanoseconds:
                self._ordered_steps = self._ordered_steps or self._steps
                if self._is_whole():
                    return self._hand_over(*self._counted(count))
        return False

    def _epoch_started(self) -> None:
        """This step was the first of an epoch."""
        self._epoch_starts += 1  # once, if several loaders begin with this step
        self._passes = self._prefetched.passes
        self._epoch_steps, self._in_epoch = self._in_epoch - 1, 1

    def _begin(self) -> None:
        """Count from here, unless batches are left that were made ready since the last turn."""
        level = self._prefetched.level()
        surplus = level.ready - self._left_level.ready
        if surplus > 0 and not self._used_up:
            self._used_up = True
            self._steps = -surplus
            return
        self._began_level, self._began_in_epoch = level, self._in_epoch
        self._epoch_starts = 0
        self._began_event, self._began_ns = self._mark(), now()
        RECORDER.later(TurnEvent("begin", self._began_ns))

    def _is_whole(self) -> bool:
        """True if the turn may end here: with whole epochs, else with the stock as it began."""
        assert self._order is not None
        longer = self._steps - self._ordered_steps
        if self._order.whole_epochs:
            return self._counts_whole_epochs() or longer > 2 * self._epoch_steps
        began = self._began_level
        if not began.workers:
            return True
        level = self._prefetched.level()
        if self._is_ahead(level):
            return True
        # workers that deliver at once: whole deliveries
        return level.ready == began.ready or longer >= 2 * began.workers

    def _is_ahead(self, level: PrefetchLevel) -> bool:
        """True if the workers kept their lead, since the first turn and in this one."""
        began, settled = self._began_level, self._settled
        if settled is None or not (settled.ahead and began.ahead and level.ahead):
            return False
        return level.ready >= settled.ready - LEVEL_VARIES

    def _counts_whole_epochs(self) -> bool:
        return self._epoch_starts > 0 and self._in_epoch == self._began_in_epoch

    def _counted(self, all_steps: int) -> tuple[Turn, int]:
        """The turn, and the host clock where it ended."""
        ended_event, ended_ns = self._mark(), now()
        level = self._prefetched.level()
        self._stop_workers()
        elapsed = ended_ns - self._began_ns
        assert self._order is not None
        whole = self._order.whole_epochs and self._counts_whole_epochs()
        stocked = 0 if self._is_ahead(level) else level.ready - self._began_level.ready
        self._settled = self._settled or level
        began = self._began_event
        if began is not None and ended_event is not None and began.device == ended_event.device:
            _synchronize()
            elapsed = int(began.elapsed_time(ended_event) * 1e6)
        batches = level.taken - self._began_level.taken
        ending = self._began_level.ending or level.ending or batches < 0
        turn = Turn(
            steps=self._steps,
            nanoseconds=elapsed,
            batches=max(0, batches),
            stocked=stocked,
            whole_epochs=whole,
            at_epoch_end=not whole and (self._epoch_starts > 0 or ending),
            epoch_starts=self._epoch_starts,
            epoch_steps=self._epoch_steps,
            all_steps=all_steps,
            peak_bytes=_peak_bytes(),
        )
        return turn, ended_ns

    def _mark(self) -> torch.cuda.Event | None:
        """The end of the work that is queued by now; None where no GPU is in use.

        With several GPUs in use one event cannot mark it: they are drained, and None is returned.
        """
        gpus = _gpus_in_use()
        if len(gpus) != 1:
            _synchronize()
            return None
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(gpus[0]))
        return event

    def _stop_workers(self) -> None:
        self._stopped = self._prefetched.stop_workers()
        self._left_level = self._prefetched.level()

    def _hand_over(self, turn: Turn, ended_ns: int) -> bool:
        """Report a turn and park until the next one; True if there is none."""
        RECORDER.later(TurnEvent("end", ended_ns))
        _synchronize()
        os.write(self._answers, turn.line())
        order = TurnOrder.read(self._read_line())
        send(self._stopped, signal.SIGCONT)
        self._order, self._steps, self._ordered_steps, self._used_up = order, -1, 0, False
        return order.ends

    def _read_line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            line += os.read(self._orders, 1)
        return line


def _gpus_in_use() -> list[int]:
    """The GPUs on which this process has tensors, which need not be the current one."""
    if not torch.cuda.is_initialized():
        return []
    used = [n for n in range(torch.cuda.device_count()) if torch.cuda.memory_allocated(n)]
    return used or [torch.cuda.current_device()]


def _synchronize() -> None:
    for gpu in _gpus_in_use():
        torch.cuda.synchronize(gpu)


def _peak_bytes() -> int:
    gpus = _gpus_in_use()
    if gpus:
        return max(torch.cuda.max_memory_allocated(gpu) for gpu in gpus)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
