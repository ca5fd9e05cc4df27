"""Recordings of a window: torch.profiler's (what the device did, or on the CPU which operators
ran), and this process's own part of a Nsight Systems recording (the capture, marks, NVTX
ranges).
"""

from __future__ import annotations

import ctypes
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpurun.records.messages.profile_events import CLOCK_MARK, ProfilerState
from gpurun.runtime.core.patching import replace

MARKS = 5
WARNERS = ("_warn_once", "warn")
"""Functions by which `torch.profiler.profiler` warns."""
QUIET = "99"
"""Kineto's own log lines of a start and a stop are left out of the script's output."""

now = time.perf_counter_ns


def keep_quiet() -> None:
    """Before torch is imported: the script's output stays its own."""
    os.environ.setdefault("KINETO_LOG_LEVEL", QUIET)


@contextmanager
def _without_warnings(module: Any) -> Iterator[None]:
    """torch 2.11 warns at each start of a profiler that events are cleared: of ours it is no use.

    Python's own filters would also hide warnings of other threads, and repeat the script's own.
    """
    kept = {name: getattr(module, name) for name in WARNERS if hasattr(module, name)}
    try:
        for name in kept:
            setattr(module, name, lambda *_, **__: None)
        yield
    finally:
        for name, function in kept.items():
            setattr(module, name, function)


@functools.cache
def _spare_children() -> None:
    """Let processes that are forked from now on end without the destructors of C++.

    Kineto's destroys a condition for which a thread of the parent waits. A child has no such
    thread, and glibc waits for it for ever. What C has buffered is still written.
    """
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "on_exit"):
        return  # no glibc

    def forked() -> None:
        libc.on_exit(libc._exit, None)  # glibc calls it with the exit code, and the last one first
        libc.on_exit(libc.fcloseall, None)

    os.register_at_fork(after_in_child=forked)


class KinetoRecording:
    """One recording of torch.profiler, written as a Chrome trace."""

    name = "kineto"

    def __init__(
        self,
        torch: Any,
        trace: Path,
        interrupted: Callable[[str], None],
        *,
        detailed: bool = False,
    ) -> None:
        """`detailed`: operators with their shapes, and not the device."""
        self._torch = torch
        self._detailed = detailed
        self._trace = trace
        self._interrupted = interrupted
        self._profiler: Any = None
        self._ours = False
        self._seconds = 0.0
        self._failure: str | None = None

    def begin(self) -> None:
        """Start to record; a failure is kept for the record."""
        began = now()
        try:
            if self._torch.autograd._profiler_enabled():
                self._failure = "the script's own profiler is running"
                return
            if threading.current_thread() is not threading.main_thread():
                # Kineto is set up for the main thread, and ends the process from another
                self._failure = "the script trains in a thread of its own"
                return
            self._watch_others()
            _spare_children()
            self._ours = True
            activities = self._activities()
            on_host = activities == [self._torch.profiler.ProfilerActivity.CPU]
            profiler = self._torch.profiler.profile(activities=activities, record_shapes=on_host)
            with _without_warnings(self._torch.profiler.profiler):
                profiler.start()
            self._profiler = profiler
            for _ in range(MARKS):
                with self._torch.profiler.record_function(f"{CLOCK_MARK}{now()}"):
                    pass
        except Exception as error:
            self._failure = f"{type(error).__name__}: {error}"
        finally:
            self._ours = False
            self._seconds += (now() - began) / 1e9

    def finish(self) -> ProfilerState:
        """Stop and write the trace."""
        began, profiler = now(), self._profiler
        self._profiler = None
        if profiler is not None:
            try:
                profiler.stop()
                self._trace.parent.mkdir(parents=True, exist_ok=True)
                profiler.export_chrome_trace(str(self._trace))
                self._failure = self._unwritten()
            except Exception as error:
                self._failure = f"{type(error).__name__}: {error}"
        self._seconds += (now() - began) / 1e9
        return ProfilerState(self.name, self._failure, self._seconds)

    def forked(self) -> None:
        """In a child: record no more, unless it starts a profiler of its own."""
        if self._profiler is not None:
            record = self._torch._C._autograd._enable_record_function
            self._interrupted = lambda _: record(True)
            record(False)

    def _unwritten(self) -> str | None:
        """Why there is no trace; None where there is one.

        On a full disk Kineto raises nothing, and leaves a draft that takes the room of the record.
        """
        if self._trace.exists():
            return None
        for draft in self._trace.parent.glob(f"{self._trace.name}.*"):
            draft.unlink()
        return "its trace could not be written (is the disk full?)"

    def _activities(self) -> list[Any]:
        """The device alone where there is one: the host's operators double the overhead."""
        activity = self._torch.profiler.ProfilerActivity
        on_device = activity.CUDA in self._torch.profiler.supported_activities()
        used = self._torch.cuda.is_initialized()
        on_device = on_device and used and not self._detailed
        return [activity.CUDA] if on_device else [activity.CPU]

    def _watch_others(self) -> None:
        """torch has one profiler a process: the script's own takes precedence."""

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def _prepare_trace(profiler: Any, *args: Any, **kwargs: Any) -> Any:
                if self._profiler is not None and not self._ours:
                    self._interrupted("the script started a profiler of its own")
                return original(profiler, *args, **kwargs)

            return _prepare_trace

        replace(self._torch.autograd.profiler.profile, "_prepare_trace", make)


INJECTED = "NVTX_INJECTION64_PATH"
"""A tool that takes NVTX ranges names its library in this variable of the processes it watches."""


class NsysCapture:
    """Tells the Nsight Systems around this process where the window begins and ends.

    It hands on ranges and marks by `torch.cuda.nvtx`, which only builds for CUDA have.
    """

    name = "nsys"

    def __init__(self, torch: Any) -> None:
        self._cuda = torch.cuda
        self._nvtx = torch.cuda.nvtx
        self._attached = (
            os.path.exists(os.environ.get(INJECTED, "")) and torch.version.cuda is not None
        )
        self._seconds = 0.0

    def begin_capture(self) -> None:
        """Begin the capture and tie its clock to this process's."""
        began = now()
        if self._cuda.is_initialized():
            self._cuda.profiler.start()
        for _ in range(MARKS if self._attached else 0):
            self._nvtx.mark(f"{CLOCK_MARK}{now()}")
        self._seconds += (now() - began) / 1e9

    def finish_capture(self) -> ProfilerState:
        """End the capture."""
        began = now()
        if self._cuda.is_initialized():
            self._cuda.profiler.stop()
        self._seconds += (now() - began) / 1e9
        failure = None if self._attached else "Nsight Systems does not watch this process"
        return ProfilerState(self.name, failure, self._seconds)

    def push(self, name: str) -> None:
        """Open a range inside the one that is open."""
        if self._attached:
            self._nvtx.range_push(name)

    def pop(self) -> None:
        """Close the range opened last."""
        if self._attached:
            self._nvtx.range_pop()

    def begin(self, name: str) -> Any:
        """Open a range that may overlap others; what `end` takes."""
        return self._nvtx.range_start(name) if self._attached else None

    def end(self, token: Any) -> None:
        """Close the range that `begin` opened."""
        if self._attached and token is not None:
            self._nvtx.range_end(token)
