"""Times the copies to a GPU that the script makes, in some early steps of a run.

The methods that move tensors are replaced for these steps only. An event is recorded on the device
before and after each copy, in the stream that the script computes in: the time between is the
device's, and nobody waits for it. Copies in other streams overlap with the training and are no part
of its steps.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gpurun.records.frames import drop_frame
from gpurun.runtime.core.device_clock import OF_THE_PARENT, Span
from gpurun.runtime.core.patching import MethodStandIns, guarded
from gpurun.runtime.observe.step_clock import CLOCK

FIRST_STEP, LAST_STEP = 9, 32
"""Compilation and the first allocations are over by then."""
MOVES = {"to", "cuda", "copy_"}
"""Where a knob or the script stands in one of them, nothing is measured: it may ask who calls."""
NAME = "copies to the device"


class CopiesToDevice:
    """Measures the copies from the end of step `FIRST_STEP` - 1 to that of `LAST_STEP`.

    `kind`: the type of device that they go to.
    """

    def __init__(self, kind: str = "cuda") -> None:
        self._kind = kind
        self._stand_ins = MethodStandIns(Tensor)
        self._looking = False
        self._spans: list[tuple[object, Span]] = []
        """With the stream of each."""
        self._listener = guarded(NAME, self._stepped, failed=lambda _: self._end())
        self._begin_span = guarded(NAME, self._mark)
        self._end_span = guarded(NAME, self._copied)

    def install(self) -> None:
        """Wait for the first step to look at."""
        CLOCK.listeners.append(self._listener)

    def _stepped(self, count: int) -> None:
        if count >= LAST_STEP:
            self._end()
        elif not self._looking and count == FIRST_STEP - 1:
            if torch.cuda.is_initialized() and not vars(Tensor).keys() & MOVES:
                self._begin()
            elif CLOCK.kind == "optimizer":
                self._end()

    def _begin(self) -> None:
        self._looking = True
        for name in MOVES:
            self._stand_ins.put(name, self._stand_in)
        CLOCK.device.on_mark = guarded(NAME, self._step_marked)
        os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        OF_THE_PARENT.append(self._spans)
        self._spans = []
        self._end()

    def _end(self) -> None:
        self._looking = False
        self._stand_ins.restore()
        self._spans.clear()
        CLOCK.device.on_mark = None
        CLOCK.listeners = [x for x in CLOCK.listeners if x is not self._listener]

    def _step_marked(self, row: list[Any]) -> None:
        stream = torch.cuda.current_stream()
        CLOCK.device.copies(row, [span for where, span in self._spans if where == stream])
        self._spans.clear()

    def _stand_in(self, original: Callable[..., Any]) -> Callable[..., Any]:
        copies, is_compiling = self, torch.compiler.is_compiling

        def move(tensor: Tensor, *args: object, **kwargs: object) -> Any:
            if is_compiling() or not copies._looking:
                return original(tensor, *args, **kwargs)
            began = copies._begin_span()
            try:
                result = original(tensor, *args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
            if began is not None:
                copies._end_span(began, args[0] if original.__name__ == "copy_" else tensor, result)
            return result

        return move

    def _mark(self) -> Any:
        """An event on the device, now; None where none may be recorded."""
        cuda = torch.cuda
        if cuda.is_current_stream_capturing():
            return None
        event = cuda.Event(enable_timing=True)
        event.record()
        return event

    def _copied(self, began: Any, source: object, result: object) -> None:
        if type(source) is not Tensor or type(result) is not Tensor:
            return
        device, cuda = result.device, torch.cuda
        if source.device.type == "cpu" and device.type == self._kind:
            ended = self._mark() if device.index in (None, cuda.current_device()) else None
            if ended is not None:
                self._spans.append((cuda.current_stream(), (began, ended)))
