"""The outcome of models that torch compiles: compiled, given up, or impossible to compile.

Torch falls back to the plain code in silence, or with a warning for readers of its own source. A
knob that compiles has to tell, else it passes for one that took effect.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable
from typing import Any, ClassVar, ParamSpec, TypeVar

from gpurun.knobs.api import Hooks
from gpurun.records.events import CompileEvent

P = ParamSpec("P")
R = TypeVar("R")

LOGGER = "torch._dynamo.convert_frame"
LIMIT = "torch._dynamo hit config."
"""So begins torch's warning that it compiles a function no more."""
MOST_WORDS = 200
ADVICE = (r"TensorFloat32 tensor cores for float32", r"\s*Online softmax is disabled on the fly")
"""So begin torch's hints to the author of what is compiled: here that is not the script's author,
whose choice of precision stays."""


class Compilations(logging.Filter):
    """Watches this process's compilations by dynamo, from `install` on.

    `gave_up` hears why a function runs without being compiled from now on. One that cannot be
    compiled raises no error in the script. `function`: the name of the one function to watch, which
    is then not the business of those that watch them all.
    """

    _watched_alone: ClassVar[set[str]] = set()
    _graphs_alone: ClassVar[int] = 0
    _times_recorded: ClassVar[bool] = False

    def __init__(
        self, hooks: Hooks, gave_up: Callable[[str], None], function: str | None = None
    ) -> None:
        super().__init__()
        self._hooks = hooks
        self._gave_up = gave_up
        self._function = function
        self._graphs: dict[str, int] = {}
        self._before: int | None = None

    def install(self) -> None:
        """Begin to watch. Once is enough, whatever is compiled later."""
        import torch._dynamo  # seconds: no script pays for it whose model is not compiled
        from torch._dynamo.utils import counters

        torch._dynamo.config.suppress_errors = True
        for message in ADVICE:
            warnings.filterwarnings("ignore", message=message)
        logging.getLogger(LOGGER).addFilter(self)
        self._graphs = counters["stats"]
        self._before = self._count()
        if self._function is not None:
            self._watched_alone.add(self._function)
        if not Compilations._times_recorded:
            Compilations._times_recorded = True
            _record_times(self._hooks)

    @property
    def graphs(self) -> int:
        """Graphs compiled so far, but for those of functions that are watched alone."""
        return 0 if self._before is None else self._count() - self._before

    def run_alone(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the one function that is watched; what it compiles is in no other watch's count."""
        before = self._graphs["unique_graphs"]
        try:
            return function(*args, **kwargs)
        finally:
            Compilations._graphs_alone += self._graphs["unique_graphs"] - before

    def _count(self) -> int:
        return self._graphs.get("unique_graphs", 0) - self._graphs_alone

    def _is_mine(self, record: logging.LogRecord) -> bool:
        if not self._watched_alone:
            return True
        said = record.getMessage()
        if self._function is not None:
            return self._function in said
        return not any(name in said for name in self._watched_alone)

    def filter(self, record: logging.LogRecord) -> bool:
        """Hear what torch warns of, and say it in one line: its own lines are for who compiles."""
        try:
            if not self._is_mine(record):
                return True
            if str(record.msg).startswith(LIMIT):
                self._gave_up(_limit(record))
                return False
            if record.levelno >= logging.WARNING and record.exc_info:
                self._gave_up(_error(record.exc_info[1]))
                return False
        except Exception:
            return True
        return True


def _record_times(hooks: Hooks) -> None:
    """Have the record say when each compilation begins and ends: one may never end."""

    def record(phase: str) -> Callable[..., None]:
        return lambda *_: hooks.record(CompileEvent(phase, time.perf_counter_ns()))

    try:
        from torch._dynamo.callback import callback_handler

        callback_handler.register_start_callback(record("begin"))
        callback_handler.register_end_callback(record("end"))
    except (ImportError, AttributeError):
        pass  # not told by this torch: a trial that hangs then says so without the cause


def _limit(record: logging.LogRecord) -> str:
    """The number of compilations before torch gave a function up, and the last change."""
    words: tuple[Any, ...] = record.args if isinstance(record.args, tuple) else ()
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
