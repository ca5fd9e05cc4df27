"""What torch makes of models that it compiles: what it compiled, gave up, or could not compile.

It falls back to the plain code in silence or with a warning for readers of its own source. A knob
that compiles has to tell, else it passes for one that took effect.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

LOGGER = "torch._dynamo.convert_frame"
LIMIT = "torch._dynamo hit config."
"""So begins torch's warning that it compiles a function no more."""
MOST_WORDS = 200


class Compilations(logging.Filter):
    """Watches this process's compilations by dynamo, from `install` on.

    `gave_up` hears why a function runs without being compiled from now on. One that cannot be
    compiled raises no error in the script.
    """

    def __init__(self, gave_up: Callable[[str], None]) -> None:
        super().__init__()
        self._gave_up = gave_up
        self._graphs: Any = None
        self._before = 0

    def install(self) -> None:
        """Begin to watch. Once is enough, whatever is compiled later."""
        import torch._dynamo
        from torch._dynamo.utils import counters

        torch._dynamo.config.suppress_errors = True
        logging.getLogger(LOGGER).addFilter(self)
        self._graphs = counters["stats"]
        self._before = self._graphs["unique_graphs"]
        record_times()

    @property
    def graphs(self) -> int:
        """Graphs compiled so far."""
        return 0 if self._graphs is None else self._graphs["unique_graphs"] - self._before

    def filter(self, record: logging.LogRecord) -> bool:
        """Hear what torch warns of. The traceback of what it suppressed is not for the script."""
        try:
            if str(record.msg).startswith(LIMIT):
                self._gave_up(_limit(record))
            elif record.levelno >= logging.WARNING and record.exc_info:
                self._gave_up(_error(record.exc_info[1]))
                return False
        except Exception:
            return True
        return True


def record_times() -> None:
    """Have the record say when each compilation begins and ends: one may never end."""
    try:
        from torch._dynamo.callback import callback_handler

        callback_handler.register_start_callback(lambda *_: _record("begin"))
        callback_handler.register_end_callback(lambda *_: _record("end"))
    except (ImportError, AttributeError):
        pass  # not told by this torch: a trial that hangs then says so without the cause


def _record(phase: str) -> None:
    from gpurun.records.events import CompileEvent
    from gpurun.runtime.recorder import RECORDER

    RECORDER.event(CompileEvent(phase=phase, clock_ns=time.perf_counter_ns()))


def _limit(record: logging.LogRecord) -> str:
    """How often a function was compiled before torch gave it up, and what had changed last."""
    words = record.args if isinstance(record.args, tuple) else ()
    times = f"{words[1]} times" if len(words) > 1 else "too often"
    why = str(words[3]).partition("#")[0] if len(words) > 3 else ""
    guard = _one_line(why.partition(": ")[2] or why)
    told = f"; what no longer held: {guard}" if guard else ""
    return f"recompiled {times}, then fell back to eager{told}"


def _error(error: BaseException | None) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = lines[:2] if lines[:1] and lines[0].endswith(":") else lines[:1]
    said += [line for line in lines[len(said) :] if " error: " in line][:1]  # a C++ compiler's
    return _one_line(f"it could not be compiled: {': '.join([type(error).__name__, *said])}")


def _one_line(text: str) -> str:
    return " ".join(text.split())[:MOST_WORDS]
