"""Times and losses of a CUDA device without waiting for it: pooled events, resolved by query.

On the CPU everything is known at once and this class costs one comparison a step.
"""

from __future__ import annotations

from typing import Any

from gpurun.records.events import StepRow

RING = 4096
"""Loss values under way at once; a later one waits for the earliest."""


class DeviceClock:
    """Marks step ends on the current stream and copies losses aside; resolves them later."""

    def __init__(self) -> None:
        self._torch: Any = None
        self._pool: list[Any] = []
        self._marks: list[tuple[list[Any], Any]] = []
        self._last: Any = None
        self._ring: Any = None
        self._slot = 0

    def attach(self, torch: Any) -> None:
        """Use this torch module."""
        self._torch = torch

    def loss(self, losses: list[Any]) -> Any:
        """The sum of scalar loss tensors: a float on the CPU, a ring slot on a CUDA device."""
        first = losses[0]
        if first.device.type != "cuda":
            return float(sum(float(x) for x in losses))
        total = first if len(losses) == 1 else sum(losses[1:], first)
        if self._ring is None:
            self._ring = self._torch.zeros(RING, pin_memory=True)
        slot = self._slot
        self._slot = (slot + 1) % RING
        self._ring[slot : slot + 1].copy_(total.reshape(1).float(), non_blocking=True)
        return _Slot(slot)

    def mark(self, row: list[Any]) -> None:
        """Record the end of this step on the device, if CUDA is in use."""
        torch = self._torch
        if torch is None or not torch.cuda.is_initialized():
            return
        event = self._pool.pop() if self._pool else torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append((row, event))

    def resolve(self, rows: list[list[Any]]) -> int:
        """Fill in what the device has finished; how many leading rows are complete."""
        if not self._marks:
            return len(rows)
        done = 0
        for row, event in self._marks:
            if not event.query():
                break
            self._complete(row, event)
            done += 1
        del self._marks[:done]
        waiting = {id(row) for row, _ in self._marks}
        for index, row in enumerate(rows):
            if id(row) in waiting:
                return index
        return len(rows)

    def finish(self) -> None:
        """Wait for the marks under way (only at the end of the process)."""
        for row, event in self._marks:
            event.synchronize()
            self._complete(row, event)
        self._marks.clear()

    def _complete(self, row: list[Any], event: Any) -> None:
        if self._last is not None:
            row[StepRow.DEVICE_NS] = int(self._last.elapsed_time(event) * 1e6)
            self._pool.append(self._last)
        self._last = event
        if isinstance(row[StepRow.LOSS], _Slot):
            row[StepRow.LOSS] = float(self._ring[row[StepRow.LOSS].index])


class _Slot:
    """A place of the pinned ring whose copy is under way."""

    __slots__ = ("index",)

    def __init__(self, index: int) -> None:
        self.index = index
