"""The profiled window: begins once the steps are steady, ends after some of them.

A GPU may be many steps behind the host. The window begins when it has caught up, and ends when it
has done all that the steps of the window launched.

Nothing is recorded outside of it. Where the script ends or raises inside the window, what was
recorded until then is written.

The ranks on one host begin and end at the same steps: while one starts or stops its profilers the
others wait for it, which must not stand in their windows.
"""

from __future__ import annotations

import atexit
import os
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from threading import get_native_id
from typing import Any

from gpurun.records.messages.profile_events import ProfileEvent, ProfilerState
from gpurun.records.spec import ProfileSpec
from gpurun.runtime.core.patching import guarded
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.core.step_agreement import StepAgreement
from gpurun.runtime.observe import model_traits
from gpurun.runtime.observe.device_sync_lines import DeviceSyncLines
from gpurun.runtime.observe.step_clock import CLOCK
from gpurun.runtime.profile import worker_samples
from gpurun.runtime.profile.allocations import AllocatorCounts
from gpurun.runtime.profile.detailed_steps import DetailedSteps
from gpurun.runtime.profile.phase_ranges import PHASES
from gpurun.runtime.profile.profiler_recordings import KinetoRecording, NsysCapture
from gpurun.runtime.profile.stack_samples import StackSamples

STEADY_OF = 3
"""Steps in a row that have to be alike before the window begins."""
STEADY_SPREAD = 1.5
"""They are alike if the longest takes at most so many times the shortest."""
PLAIN_STEPS = 6
"""Steps before the window, without profilers, that tell what profiling costs."""
READ_STEPS = 3
"""Early steps in which lines that read values of tensors are looked for."""
SETTLING_STEPS = READ_STEPS + PLAIN_STEPS
"""Steps before a window at the least. After as many more it begins, steady or not."""
UNHEARD = 3
"""A rank that hears nothing from the deciding rank begins after this many times as many steps."""
UNENDED = 2
"""Such a rank ends its window when it is this many times as long as needed."""
POLL_SECONDS = 0.0005
CATCH_UP_SECONDS = 30.0
"""A GPU that has not done its work by then is not waited for."""

now = time.perf_counter_ns


class ProfileWindow:
    """Starts and stops the profilers of this process, by the steps of its clock."""

    def __init__(
        self, spec: ProfileSpec, run_dir: Path, torch: Any, stop: Callable[[], None]
    ) -> None:
        control, folder = run_dir / "control", run_dir / "profile"
        self._spec = spec
        self._stop_script = stop
        self._control = control
        self._torch = torch
        self._seen = 0
        """Steps since the clock began to count."""
        self._recent: deque[int] = deque(maxlen=STEADY_OF)
        self._last = now()
        self._kineto = KinetoRecording(torch, folder / f"kineto-{os.getpid()}.json", self.finish)
        self._nsys = NsysCapture(torch) if {"nsys", "ncu"} & set(spec.sources) else None
        self._detail = DetailedSteps(torch, folder)
        self._allocator = AllocatorCounts(torch)
        self._waits = DeviceSyncLines(READ_STEPS)
        self._look_for_reads = guarded("waits", self._waits.after_step)
        self._step_token: Any = None
        self._least = max(spec.warmup_steps, SETTLING_STEPS, spec.every or 0)
        """Steps before the window at the least."""
        self._number = 0
        self._next_window()

    def _next_window(self) -> None:
        """Nothing of the window that comes next has been recorded yet."""
        self._number += 1
        mark = "" if self._number == 1 else f"-{self._number}"
        self._begins = StepAgreement(self._control, f"profile-begins{mark}")
        self._ends = StepAgreement(self._control, f"profile-ends{mark}")
        self._began: int | None = None
        self._done = False
        self._first_step = 0
        self._step_ends: list[int] = []
        self._recent.clear()
        self._samples = StackSamples(PHASES)
        self._profilers: list[ProfilerState] = []

    def after_step(self, count: int) -> None:
        """The clock's step `count` is over."""
        if self._detail.recording and self._detail.after_step() and self._spec.stop:
            self._stop_script()
        if self._done:
            return
        PHASES.step_ended()
        end = now()
        if self._began is not None:
            self._step_ends.append(end)
            self._close_step()
            self._open_step()
            complete = self._is_complete(len(self._step_ends) + self._ends.ahead, end)
            if self._ends.agreed(count, "complete" if complete else None):
                self.finish(None)
                if "operators" in self._spec.sources and self._spec.every is None:
                    guarded("operators", self._detail.begin)()
                if self._spec.stop and not self._detail.recording:
                    self._stop_script()
                if self._spec.every is not None:
                    following = self._first_step + self._spec.every
                    self._least = max(following, count + SETTLING_STEPS)
                    self._next_window()
                    self._last = now()
            elif not self._ends.leads and self._is_complete(len(self._step_ends), end, UNENDED):
                self.finish(None)
            return
        if count <= self._seen:
            self._recent.clear()  # a better clock was found, which counts from 1
        self._seen = count
        self._recent.append(end - self._last)
        self._look_for_reads(count)
        if count >= self._least and self._is_to_begin(count):
            self._begin(count)
        self._last = now()

    def forked(self) -> None:
        """In a child: a window that is open stays the parent's."""
        if self._began is not None:
            self._done = True
            self._kineto.forked()
            self._detail.forked()
            PHASES.recording = False

    def _is_to_begin(self, count: int) -> bool:
        waited = count - self._least
        steady = self._are_alike() or waited >= SETTLING_STEPS
        if self._begins.agreed(count, "steady" if steady else None) is not None:
            return True
        return waited >= UNHEARD * SETTLING_STEPS and not self._begins.leads

    def _are_alike(self) -> bool:
        return max(self._recent) <= STEADY_SPREAD * min(self._recent)

    def _is_complete(self, steps: int, end: int, times: int = 1) -> bool:
        assert self._began is not None
        spec = self._spec
        long_enough = end - self._began >= times * spec.min_seconds * 1e9
        return steps >= times * (spec.steps if long_enough else spec.max_steps)

    def _begin(self, count: int) -> None:
        self._first_step = count
        self._waits.abandon()
        self._catch_up()
        if "allocator" in self._spec.sources:
            guarded("allocator counts", self._allocator.begin)()
        if "kineto" in self._spec.sources:
            self._kineto.begin()
        if self._nsys is not None:
            guarded("nsys", self._nsys.begin_capture)()
            PHASES.markers = self._nsys
        PHASES.recording = True
        self._open_step()
        if "host" in self._spec.sources:
            guarded("stack samples", self._samples.begin)()
        self._began = now()

    def _catch_up(self) -> None:
        """Wait for the GPU, without a call that a profiler takes for a wait of the script's."""
        cuda = self._torch.cuda
        if cuda.is_initialized() and not cuda.is_current_stream_capturing():
            event, limit = cuda.Event(), time.monotonic() + CATCH_UP_SECONDS
            event.record()
            while not event.query() and time.monotonic() < limit:
                time.sleep(POLL_SECONDS)

    def finish(self, why_early: str | None) -> None:
        """Stop the profilers and write the record; nothing if no window is open.

        A window that the script's end cuts off is left out where it has no step, or an earlier one
        is whole.
        """
        guarded("operators", self._detail.abandon)()
        if self._began is None or self._done:
            return
        self._done = True
        guarded("device", self._catch_up)()
        end = now()
        self._step_ends[-1:] = [end] if self._step_ends else []
        PHASES.recording = False
        self._close_step()
        if self._nsys is not None:
            state = guarded("nsys", self._nsys.finish_capture)()
            self._profilers += [state] if state is not None else []
        samples = None
        if "host" in self._spec.sources:
            samples = guarded("stack samples", self._samples.finish)()
        if "kineto" in self._spec.sources:
            self._profilers.append(self._kineto.finish())
        memory = None
        if "allocator" in self._spec.sources:
            memory = guarded("allocator counts", self._allocator.finish)()
        if why_early is not None and (self._number > 1 or not self._step_ends):
            return
        if samples is not None:
            RECORDER.event(samples)
        RECORDER.event(
            ProfileEvent(
                begin_ns=self._began,
                end_ns=end,
                first_step=self._first_step,
                steps=len(self._step_ends),
                thread=get_native_id(),
                phases=(*self._steps(), *PHASES.take()),
                profilers=tuple(self._profilers),
                memory=memory,
                ended_early=why_early,
                number=self._number,
            )
        )

    def _open_step(self) -> None:
        if PHASES.markers is not None:
            self._step_token = PHASES.markers.begin("step")

    def _close_step(self) -> None:
        if PHASES.markers is not None:
            PHASES.markers.end(self._step_token)

    def _steps(self) -> list[tuple[str, int, int]]:
        assert self._began is not None
        begins = [self._began, *self._step_ends]
        return [("step", b, e) for b, e in zip(begins, self._step_ends, strict=False)]


def arm(spec: ProfileSpec, run_dir: Path, torch: Any, stop: Callable[[], None]) -> None:
    """Have this process profile itself by the spec."""
    guarded("phases", PHASES.install)(torch)
    if "host" in spec.sources:
        guarded("worker samples", worker_samples.install)(torch)
    guarded("look for changing shapes", model_traits.look_for_changing_shapes)()
    guarded("look for padding", model_traits.look_for_padding)()
    window = ProfileWindow(spec, run_dir, torch, stop)
    CLOCK.listeners.append(guarded("profile", window.after_step))
    os.register_at_fork(after_in_child=guarded("profile", window.forked))
    atexit.register(guarded("profile", window.finish), "the script ended inside the window")
