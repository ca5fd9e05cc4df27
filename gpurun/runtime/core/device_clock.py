"""Times and losses of a CUDA device without waiting for it: pooled events, resolved by query.

On the CPU everything is known at once and this class costs nothing. An error of the
device (several devices in one process, say) ends the device times, never the step clock. While a
CUDA graph is being captured nothing of CUDA is touched: any query would invalidate the capture.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from gpurun.records.events import StepRow
from gpurun.runtime.core.recorder import RECORDER

if TYPE_CHECKING:
    from torch import Tensor
    from torch.cuda import Event

Span: TypeAlias = "tuple[Event, Event]"
"""Events before and after something that the device does."""

OF_THE_PARENT: list[object] = []
"""What a forked child keeps of its parent: destroying a CUDA event or tensor there would abort."""
RING = 4096
"""Loss values under way at once; a later one waits for the earliest."""
POLL_SECONDS = 0.01


class DeviceClock:
    """Marks step ends on the current stream and copies losses aside; resolves them later."""

    def __init__(self) -> None:
        self.watching = False
        """True if CUDA is in use; checked at each flush and each loss."""
        self.on_mark: Callable[[list[Any]], None] | None = None
        """Called after a step's end is marked, on the device's stream."""
        self._torch: Any = None
        self._pool: list[Event] = []
        self._marks: list[tuple[list[Any], Event]] = []
        self._copies: dict[int, Sequence[Span]] = {}
        """By the id of a row that is marked: copies of its step."""
        self._last: Event | None = None
        self._ring: Tensor | None = None
        self._slot = 0

    def attach(self, torch: ModuleType) -> None:
        """Use this torch module."""
        self._torch = torch

    def forget(self) -> None:
        """In a forked child: its parent's device is out of reach."""
        self._pool, self._marks, self._copies = [], [], {}
        self._last = self._ring = None
        self.watching = False

    def loss(self, losses: list[Tensor]) -> Any:
        """The sum of scalar losses: a float on the CPU, a ring slot on CUDA, None elsewhere."""
        try:
            kind = losses[0].device.type
            if kind == "cpu":
                return float(sum(float(x) for x in losses))
            if kind != "cuda" or self._torch is None or self._capturing():
                return None
            self.watching = True
            total = losses[0] if len(losses) == 1 else sum(losses[1:], losses[0])
            if self._ring is None:
                self._ring = self._torch.zeros(RING, pin_memory=True)
            slot = self._slot
            self._slot = (slot + 1) % RING
            self._ring[slot : slot + 1].copy_(total.reshape(1).float(), non_blocking=True)
        except Exception as error:
            self._fail(error)
            return None
        return _Slot(slot)

    def mark(self, row: list[Any]) -> None:
        """Record the end of this step on the device; only while `watching`."""
        try:
            if self._capturing():
                return  # nor was its loss copied
            event = self._pool.pop() if self._pool else self._torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append((row, event))
            if self.on_mark is not None:
                self.on_mark(row)
            if len(self._marks) >= RING:
                self._marks[0][1].synchronize()
                self._advance()
        except Exception as error:
            _forget_slot(row)
            self._fail(error)

    def copies(self, row: list[Any], spans: Sequence[Span]) -> None:
        """The copies of the step that has just been marked, in the stream of its mark."""
        self._copies[id(row)] = spans

    def resolve(self, rows: list[list[Any]]) -> int:
        """Fill in the rows that the device has finished; return how many leading ones are done."""
        if self._torch is not None:
            self.watching = self._torch.cuda.is_initialized()
        if not self._marks:
            return len(rows)
        try:
            if not self._capturing():
                self._advance()
        except Exception as error:
            self._fail(error)
        waiting = {id(row) for row, _ in self._marks}
        for index, row in enumerate(rows):
            if id(row) in waiting:
                return index
        return len(rows)

    def finish(self, patience_s: float | None = None) -> None:
        """Wait for the marks under way, at most `patience_s`; later ones stay unknown."""
        try:
            if patience_s is None:
                for _, event in self._marks:
                    event.synchronize()
            else:
                deadline = time.monotonic() + patience_s
                while self._marks and time.monotonic() < deadline:
                    self._advance()
                    time.sleep(POLL_SECONDS if self._marks else 0)
            self._advance()
        except Exception as error:
            self._fail(error)
        self._give_up_marks()

    def _capturing(self) -> bool:
        return bool(self._torch.cuda.is_current_stream_capturing())

    def _advance(self) -> None:
        """Fill in the rows whose events have completed."""
        done = 0
        for row, event in self._marks:
            if not event.query():
                break
            self._complete(row, event)
            done += 1
        del self._marks[:done]

    def _complete(self, row: list[Any], event: Event) -> None:
        if self._last is not None:
            row[StepRow.DEVICE_NS] = int(self._last.elapsed_time(event) * 1e6)
            self._pool.append(self._last)
        self._last = event
        spans = self._copies.pop(id(row), None) if self._copies else None
        if spans is not None:
            took_ms = sum(begin.elapsed_time(end) for begin, end in spans)
            row[StepRow.COPY_NS] = int(took_ms * 1e6)
        if isinstance(row[StepRow.LOSS], _Slot) and self._ring is not None:
            row[StepRow.LOSS] = float(self._ring[row[StepRow.LOSS].index])

    def _give_up_marks(self) -> None:
        for row, _ in self._marks:
            _forget_slot(row)
        self._marks.clear()
        self._copies.clear()

    def _fail(self, error: Exception) -> None:
        RECORDER.hook_failed("device clock", error)
        self._give_up_marks()
        self._torch, self.watching = None, False


def _forget_slot(row: list[Any]) -> None:
    """Mark a loss as unknown: nothing waits for its copy any more."""
    if isinstance(row[StepRow.LOSS], _Slot):
        row[StepRow.LOSS] = None


class _Slot:
    """A place of the pinned ring whose copy is under way."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index
