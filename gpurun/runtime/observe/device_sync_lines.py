"""Records the script's lines that read values of tensors: on a GPU each of them waits for it.

Methods of `torch.Tensor` are replaced for a few early steps of a trial of the script as it is.
torch's own methods are back before anything is measured. A subclass or mode with its own
`__torch_function__` gets torch's own method all the while.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from threading import get_ident
from types import FrameType
from typing import Any

import torch
from torch import Tensor, overrides

from gpurun.knobs.callers import is_users
from gpurun.records.events import ValueRead, WaitsEvent
from gpurun.records.frames import drop_frame
from gpurun.runtime.core.patching import MethodStandIns, guarded
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.observe.step_clock import CLOCK

READS = {
    "item": ".item()",
    "tolist": ".tolist()",
    "cpu": ".cpu()",
    "__float__": "float()",
    "__int__": "int()",
    "__index__": "an index",
    "__bool__": "a condition",
}
"""Methods that copy a value to the host, and their names in the report (`numpy` of a tensor on a
GPU raises).
"""
PRINTING = ("_tensor.py", "_tensor_str.py")
"""Files of torch through which a line that formats a tensor reads it."""
MOST_LINES = 64


class DeviceSyncLines:
    """Looks from the end of the first step to the end of step `steps`; both count from 1.

    Code before the first step does not belong to the loop, and often reads many values.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._looking = False
        self._looked = 0
        self._stand_ins = MethodStandIns(Tensor)
        self._seen: dict[tuple[str, str, str], tuple[int, int, int]] = {}
        """By line, call and device: in how many steps, calls, the last of those steps."""
        self._tell = guarded("device syncs", self._saw)

    def after_step(self, step: int) -> None:
        """The step is over: begin, go on, or write what was seen and stop looking."""
        if step == 1 < self._steps:
            self._begin()
        elif self._looking:
            self._looked += 1
            if step >= self._steps:
                self.abandon()
                RECORDER.event(WaitsEvent(steps=self._looked, reads=self._reads()))

    def abandon(self) -> None:
        """Stop looking and leave nothing behind."""
        self._looking = False
        self._stand_ins.restore()

    def _reads(self) -> tuple[ValueRead, ...]:
        return tuple(
            ValueRead(where=where, call=call, device=device, steps=steps, calls=calls)
            for (where, call, device), (steps, calls, _) in self._seen.items()
        )

    def _begin(self) -> None:
        self._looking = True
        for name in READS:
            self._stand_ins.put(name, functools.partial(self._stand_in, name))
        os.register_at_fork(after_in_child=self.abandon)

    def _stand_in(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        syncs = self
        is_compiling = torch.compiler.is_compiling
        answers_itself: Callable[[Tensor], bool] = overrides.has_torch_function_unary

        def read(tensor: Tensor, *args: object, **kwargs: object) -> Any:
            if is_compiling():
                return original(tensor, *args, **kwargs)
            try:
                if syncs._looking:
                    syncs._tell(tensor, name, sys._getframe(1))
                if answers_itself(tensor):
                    return overrides.handle_torch_function(
                        original, (tensor,), tensor, *args, **kwargs
                    )
                return original(tensor, *args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise

        return read

    def _saw(self, tensor: Tensor, name: str, frame: FrameType | None) -> None:
        if get_ident() != CLOCK.thread:
            return
        call = READS[name]
        while frame is not None and self._prints(frame.f_code.co_filename):
            call, frame = "printing", frame.f_back
        if frame is None or not is_users(frame) or frame.f_code.co_filename.startswith("<"):
            return
        with torch._C.DisableTorchFunction():
            device = tensor.device.type
        key = (f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}", call, device)
        steps, calls, last = self._seen.get(key, (0, 0, -1))
        if steps or len(self._seen) < MOST_LINES:
            steps += last != self._looked
            self._seen[key] = (steps, calls + 1, self._looked)

    def _prints(self, file: str) -> bool:
        return file.endswith(PRINTING) and file.startswith(os.path.dirname(torch.__file__))
