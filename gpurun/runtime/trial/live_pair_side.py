"""One side of a live pair: it trains in turns and waits, parked in its step hook, between them.

Two FIFOs in the control folder carry the hand-over: the launcher writes one order a turn, this side
writes one answer at the turn's end. The device is drained before the answer, so that nothing of
this side runs in the other's turn. Counted time begins where the turn's first step ends: that step
pays for caches which the other side has filled.

Loader workers would go on until they are frozen, so they are stopped at once. Over all its turns a
side trains as if it were never frozen: batches that are ready, epochs that end and costs that come
once in many steps stay in their own proportion. So nothing is corrected here.
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
from gpurun.runtime.observe.torch_loader_internals import WorkerProcesses, send

now = time.perf_counter_ns


class Turns:
    """Takes the turns of this process; the first one begins after `after_steps` steps.

    `OSError` if the FIFOs are missing. Without `workers` loaders are not looked at.
    """

    def __init__(
        self, control: Path, after_steps: int, workers: WorkerProcesses | None = None
    ) -> None:
        # Opened for both ways, so that neither side sees an end of file while the other is opening.
        self._orders = os.open(control / ORDERS, os.O_RDWR | os.O_CLOEXEC)
        self._answers = os.open(control / ANSWERS, os.O_RDWR | os.O_CLOEXEC)
        self._process = os.getpid()
        self._wait_steps = after_steps
        self._workers = workers or WorkerProcesses()
        self._order: TurnOrder | None = None
        self._began_ns = 0
        self._began_event: torch.cuda.Event | None = None
        self._steps = -1
        self._stopped: list[int] = []
        self._passes = self._in_epoch = self._epoch_steps = self._epoch_starts = 0

    def after_step(self, count: int) -> bool:
        """A step is over: go on, or end the turn and wait for the next one; True: there is none."""
        self._in_epoch += 1
        if self._passes != self._workers.passes:  # this step was the first of an epoch
            self._passes = self._workers.passes
            self._epoch_starts += 1  # once, if several loaders begin with this step
            self._epoch_steps, self._in_epoch = self._in_epoch - 1, 1
        if self._order is None:
            if count < self._wait_steps or os.getpid() != self._process:
                return False
            self._stopped = self._workers.stop()
            return self._hand_over(Turn(0, 0), now())
        self._steps += 1
        if self._steps == 0:
            self._epoch_starts = 0
            self._began_event, self._began_ns = self._mark(), now()
            RECORDER.later(TurnEvent("begin", self._began_ns))
        elif self._steps >= self._order.least_steps:
            if now() - self._began_ns >= self._order.nanoseconds:
                return self._hand_over(*self._counted(count))
        return False

    def _counted(self, all_steps: int) -> tuple[Turn, int]:
        """The turn, and the host clock where it ended."""
        ended_event, ended_ns = self._mark(), now()
        fed, self._stopped = self._workers.any, self._workers.stop()
        elapsed, began = ended_ns - self._began_ns, self._began_event
        if began is not None and ended_event is not None and began.device == ended_event.device:
            _synchronize()
            elapsed = int(began.elapsed_time(ended_event) * 1e6)
        starts, epoch = self._epoch_starts, self._epoch_steps
        turn = Turn(self._steps, elapsed, fed, starts, epoch, all_steps, _peak_bytes())
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

    def _hand_over(self, turn: Turn, ended_ns: int) -> bool:
        """Report a turn and park until the next one; True if there is none."""
        RECORDER.later(TurnEvent("end", ended_ns))
        _synchronize()
        os.write(self._answers, turn.line())
        self._order, self._steps = TurnOrder.read(self._read_line()), -1
        send(self._stopped, signal.SIGCONT)
        return self._order.ends

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
