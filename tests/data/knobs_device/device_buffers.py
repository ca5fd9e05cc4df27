"""Images are copied ahead into buffers on the device: safely, or into what is still to be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts

BUSY_CYCLES = 10_000_000
"""Of the GPU's clock: for so long a copy that comes late waits its turn."""
LATER = 20


class DeviceBuffers(Knob):
    """The loader's images lie in one of two buffers on the device when the script asks for them.

    "two": each waits for the other side. "one": the next batch overwrites the one that was handed
    out; "one later": only from the 20th batch on. "late": nobody waits for a copy to arrive.
    """

    name: ClassVar[str] = "device_buffers"
    effect: ClassVar[Effect] = Effect.PIPELINE

    def candidates(self, facts: Facts) -> Sequence[str]:
        return ["two", "one", "one later", "late"]

    def apply(self, value: str, hooks: Hooks) -> None:
        import torch

        original = torch.utils.data.DataLoader.__iter__
        side = _Side(torch, value)

        def ahead(loader: Any) -> Any:
            waiting: Any = None
            for number, (images, *rest) in enumerate(original(loader)):
                one = value == "one" or (value == "one later" and side.copies >= LATER)
                fresh = side.begin(images, 0 if one else number % 2)
                if waiting is not None:
                    yield _handed(*waiting)
                waiting = (fresh, rest)
            if waiting is not None:
                yield _handed(*waiting)

        torch.utils.data.DataLoader.__iter__ = ahead
        hooks.applied()


def _handed(images: Callable[[], Any], rest: list[Any]) -> list[Any]:
    return [images(), *rest]


class _Side:
    """Buffers, and the stream beside the script's own; without a GPU copies are done at once."""

    def __init__(self, torch: Any, value: str) -> None:
        self.copies = 0
        self._torch = torch
        self._late = value == "late"
        self._gpu = torch.cuda.is_available()
        self._buffers: dict[int, Any] = {}
        self._arrived: dict[int, Any] = {}
        self._stream: Any = None

    def begin(self, images: Any, slot: int) -> Callable[[], Any]:
        """Begin to copy; what is returned hands the buffer out."""
        self.copies += 1
        if slot not in self._buffers:
            device = "cuda" if self._gpu else "cpu"
            self._buffers[slot] = self._torch.zeros_like(images, device=device)
        if not self._late:
            self._copy(images, slot)

        def handed_out() -> Any:
            buffer = self._buffers[slot]
            if self._late:
                held = buffer if self._gpu else buffer.clone()
                self._copy(images, slot)
                return held
            if self._gpu:
                self._torch.cuda.current_stream().wait_event(self._arrived[slot])
            return buffer

        return handed_out

    def _copy(self, images: Any, slot: int) -> None:
        buffer = self._buffers[slot]
        if not self._gpu:
            buffer.copy_(images)
            return
        cuda = self._torch.cuda
        self._stream = self._stream or cuda.Stream()
        self._stream.wait_stream(cuda.current_stream())
        with cuda.stream(self._stream):
            if self._late:
                cuda._sleep(BUSY_CYCLES)
            buffer.copy_(images.pin_memory(), non_blocking=True)
            self._arrived[slot] = self._stream.record_event()
