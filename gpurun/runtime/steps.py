"""The step clock: what happened between two optimizer steps, in microseconds of work a step.

The hot path adds integers and appends one list a step; `hand_over` turns the rows into an event.
Nothing here synchronises with a device: loss values and step times of a CUDA device are resolved
later, when their events have completed (`device_clock`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from gpurun.records.events import StepRow, StepsEvent
from gpurun.runtime.device_clock import DeviceClock
from gpurun.runtime.recorder import RECORDER

FLUSH_NS = 500_000_000
"""A kill loses at most this much of the record."""
LOSS_EVERY_NS = 1_000_000_000
"""Outside trials the loss is looked at this seldom."""

now = time.perf_counter_ns


class LoaderState:
    """What a DataLoader has handed out, kept by the clock."""

    __slots__ = ("batches", "number", "passes", "pending", "training_batches")

    def __init__(self, number: int) -> None:
        self.number = number
        self.passes = 0
        self.batches = 0
        self.training_batches = 0
        self.pending = False


class StepClock:
    """Accumulates the parts of the running step and closes a row at each step."""

    def __init__(self) -> None:
        self.data_ns = 0
        self.forward_ns = 0
        self.backward_ns = 0
        self.microbatches = 0
        self.input_samples = 0
        self.tokens = 0
        self.samples: dict[int, list[int]] = {}
        self.losses: list[Any] = []
        self.every_loss = False
        self.pending_loaders: list[LoaderState] = []
        self.steps_of: dict[int, int] = {}
        self.optimizers: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self.backwards = 0
        self.forwards = 0
        self.device = DeviceClock()
        self.listeners: list[Callable[[int], None]] = []
        self.before_step: list[Callable[[Any], None]] = []
        self._stepping: list[tuple[Any, int]] = []
        self._rows: dict[str, list[list[Any]]] = {"optimizer": [], "backward": [], "forward": []}
        self._flushed = now()
        self._loss_seen = 0
        self._latest: list[Any] | None = None
        RECORDER.on_flush(self.hand_over)

    # -- what the hooks call -------------------------------------------------------------------

    def batch(self, loader: LoaderState, waited_ns: int, indices: int | None) -> None:
        """A loader yielded a batch to code with gradients enabled."""
        self._stepping.clear()
        self.data_ns += waited_ns
        loader.batches += 1
        if not loader.pending:
            loader.pending = True
            self.pending_loaders.append(loader)
        seen = self.samples.get(loader.number)
        if seen is None:
            seen = self.samples[loader.number] = [0, 0]
        seen[0] += indices or 0
        seen[1] += 1

    def forward(self, elapsed_ns: int, samples: int, tokens: int, training: bool) -> None:
        """A root module returned."""
        if training:
            self.forward_ns += elapsed_ns
            self.input_samples += samples
            self.tokens += tokens
            return
        if not self.steps_of and not self.backwards:
            self.forward_ns += elapsed_ns
            self.input_samples += samples
            self.tokens += tokens
            self.forwards += 1
            self._close("forward", 0, now(), 0)
            self._tell(self.forwards)

    def backward(self, elapsed_ns: int, loss: Any) -> None:
        """A backward pass returned."""
        self.backward_ns += elapsed_ns
        self.microbatches += 1
        self.backwards += 1
        for loader in self.pending_loaders:
            loader.training_batches += 1
            loader.pending = False
        self.pending_loaders.clear()
        if loss is not None and (self.every_loss or now() - self._loss_seen > LOSS_EVERY_NS):
            self.losses.append(loss.detach())
        if not self.steps_of and not self.optimizers:
            self._close("backward", 0, now(), 0)
            self._tell(self.backwards)

    def step_begins(self, optimizer: Any, *_: Any) -> None:
        """Global optimizer pre-hook."""
        stepping = self._stepping
        stepping.append((optimizer, now()))
        if len(stepping) == 1:
            for callback in self.before_step:
                callback(optimizer)

    def step_ends(self, optimizer: Any, *_: Any) -> None:
        """Global optimizer post-hook; a subclass that calls `super().step()` counts once."""
        stepping = self._stepping
        if not stepping:
            return
        began = stepping.pop()[1]
        if any(other is optimizer for other, _ in stepping):
            return
        end = now()
        number = self.optimizers.get(optimizer)
        if number is None:
            number = self.optimizers[optimizer] = len(self.optimizers)
        count = self.steps_of[number] = self.steps_of.get(number, 0) + 1
        self._close("optimizer", number, end, end - began)
        if count >= max(self.steps_of.values()):
            self._tell(count)

    # -- rows ----------------------------------------------------------------------------------

    def _close(self, clock: str, source: int, end: int, optimizer_ns: int) -> None:
        loss: Any = None
        if self.losses:
            loss = self.device.loss(self.losses)
            self.losses = []
            self._loss_seen = end
        row: list[Any] = [
            source, end, self.data_ns, self.forward_ns, self.backward_ns, optimizer_ns,
            self.microbatches, self.input_samples, self.tokens, self.samples, loss, None, None,
        ]  # fmt: skip
        self._rows[clock].append(row)
        self._latest = row
        self.device.mark(row)
        self.data_ns = self.forward_ns = self.backward_ns = 0
        self.microbatches = self.input_samples = self.tokens = 0
        self.samples = {}
        if end - self._flushed > FLUSH_NS:
            self._flushed = end
            RECORDER.flush()

    def _tell(self, count: int) -> None:
        for listener in self.listeners:
            listener(count)

    def last_loss(self) -> float | None:
        """The loss of the latest step; waits for the device (for audits, not for the hot path)."""
        if self._latest is None:
            return None
        self.device.finish()
        loss = self._latest[StepRow.LOSS]
        return loss if isinstance(loss, float) else None

    def hand_over(self) -> None:
        """Write the finished rows; rows that wait for the device stay until they are resolved."""
        for clock, rows in self._rows.items():
            ready = self.device.resolve(rows)
            if ready:
                done = rows[:ready]
                del rows[:ready]
                RECORDER.event(StepsEvent(clock=clock, rows=tuple(tuple(r) for r in done)))

    def drain(self) -> None:
        """At the end of the process: wait for the device and write every row."""
        self.device.finish()
        self.hand_over()


assert StepRow.WIDTH == 13, "rows are written by position"
CLOCK = StepClock()
"""The clock of this process."""
