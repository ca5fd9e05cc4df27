"""Host profile: a thread looks at the stepping thread's stack some two hundred times a second.

A tracing profiler (`cProfile`) makes a loop over tensors several times slower and blames small
functions for it; samples cost the same whatever the script does.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FrameType

from gpurun.knobs.callers import is_ours, is_users
from gpurun.records.messages.profile_events import FunctionSamples, HostSamplesEvent, SampleMoment
from gpurun.runtime.profile.phase_ranges import PhaseRanges

INTERVAL_SECONDS = 0.005
"""On average: an even pace would see a script of the same pace always at the same place."""
SWITCH_SECONDS = 0.0002
"""So long at most the script's thread keeps Python's lock when a sample is due. With Python's own
5 ms, code that is shorter would never be seen: each sample would wait until a torch call."""
MOST_FUNCTIONS = 400
"""Functions kept, the longest first: the rest is noise."""
MOST_MOMENTS = 20_000
"""Samples whose times are kept: those of 100 s."""
REPORTED = tuple(64 << doubled for doubled in range(6))
"""Samples after which sums are reported: a process that is killed reports nothing later."""
DEEPEST = 200
"""Frames looked at from the innermost out."""

Key = tuple[CodeType, str | None]


class StackSamples:
    """Samples one thread. `begin` and `finish` are called by that thread.

    `most`: of a process that does only some part of a step, so many samples of that are enough.
    `report`: takes sums on the way, each time that the samples have doubled.
    """

    def __init__(
        self,
        phases: PhaseRanges,
        most: int | None = None,
        report: Callable[[HostSamplesEvent], None] | None = None,
    ) -> None:
        self._phases, self._most, self._report = phases, most, report
        self._stop = threading.Event()
        self._self: dict[Key, float] = defaultdict(float)
        self._total: dict[Key, float] = defaultdict(float)
        self._blocked: dict[Key, float] = defaultdict(float)
        self._lines: dict[Key, dict[int, float]] = {}
        self._users: dict[CodeType, bool] = {}
        self._moments: list[tuple[int, list[tuple[Key, int]]]] = []
        self._samples = 0
        self._seconds = 0.0

    def begin(self) -> None:
        """Start to look at the calling thread."""
        self._switch_seconds = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        self._target = threading.get_ident()
        self._schedule = Schedule(threading.get_native_id())
        self._thread = threading.Thread(target=self._run, name="gpurun samples", daemon=True)
        self._thread.start()

    def finish(self) -> HostSamplesEvent:
        """Stop, and sum up what was seen."""
        self._stop.set()
        self._thread.join(1.0)
        sys.setswitchinterval(self._switch_seconds)
        self._schedule.close()
        return self._sums()

    def _sums(self) -> HostSamplesEvent:
        kept = sorted(self._total, key=lambda key: -self._total[key])[:MOST_FUNCTIONS]
        return HostSamplesEvent(
            seconds=self._seconds,
            samples=self._samples,
            functions=tuple(map(self._function, kept)),
            moments=tuple(self._placed({key: place for place, key in enumerate(kept)})),
        )

    def _placed(self, places: Mapping[Key, int]) -> Iterator[SampleMoment]:
        for at, frames in self._moments:
            yield at, tuple((places[key], line) for key, line in frames if key in places)

    def _run(self) -> None:
        pace = random.Random(0)
        last, ready = time.perf_counter(), self._schedule.ready_seconds()
        while not self._stop.wait(pace.uniform(0.5, 1.5) * INTERVAL_SECONDS):
            at, now_ready = time.perf_counter(), self._schedule.ready_seconds()
            if not self._take(at - last, at - last - (now_ready - ready)):
                return
            last, ready = at, now_ready

    def _take(self, seconds: float, blocked_seconds: float) -> bool:
        """One sample, which stands for the time since the one before it; False: no thread is left.

        The whole stack is read at once: as soon as this thread lets go of Python's lock, to read a
        file for example, the script's functions return.
        """
        phase = next(reversed(self._phases.current), None)
        frame = sys._current_frames().get(self._target)
        stack: list[tuple[FrameType, int | None]] = []
        while frame is not None and len(stack) < DEEPEST:
            stack.append((frame, frame.f_lineno))
            frame = frame.f_back
        if not stack:
            return False
        if phase is None and self._most is not None:
            return True
        self._samples += 1
        self._seconds += seconds
        innermost, seen = True, set()
        moment: list[tuple[Key, int]] = []
        if self._most is None and len(self._moments) < MOST_MOMENTS:
            self._moments.append((time.perf_counter_ns(), moment))
        for frame, line in stack:
            if not is_ours(frame):
                key = (frame.f_code, phase)
                first, innermost = innermost, False
                if first:
                    self._self[key] += seconds
                    self._blocked[key] += max(blocked_seconds, 0.0)
                if key not in seen:
                    seen.add(key)
                    line = _line_of(frame) if line is None else line
                    self._note(key, frame, line, seconds)
                    if first or self._users[key[0]]:
                        moment.append((key, line))
        if self._report is not None and self._samples in REPORTED:
            self._report(self._sums())
        return self._samples != self._most

    def _note(self, key: Key, frame: FrameType, line: int, seconds: float) -> None:
        self._total[key] += seconds
        lines = self._lines.setdefault(key, defaultdict(float))
        lines[line] += seconds
        if key[0] not in self._users:
            self._users[key[0]] = is_users(frame) and not key[0].co_filename.startswith("<")

    def _function(self, key: Key) -> FunctionSamples:
        code, phase = key
        lines = self._lines[key]
        return FunctionSamples(
            file=code.co_filename,
            line=max(lines, key=lines.__getitem__),
            function=getattr(code, "co_qualname", code.co_name),
            phase=phase,
            users_own=self._users[code],
            self_seconds=self._self[key],
            total_seconds=self._total[key],
            blocked_seconds=self._blocked[key] if self._schedule.counted else None,
        )


def _line_of(frame: FrameType) -> int:
    """The line that runs; of a loop's jump, which has none in newer Pythons, the one before it."""
    if frame.f_lineno is not None:
        return frame.f_lineno
    known = frame.f_code.co_firstlineno
    for start, _, line in frame.f_code.co_lines():
        if start > frame.f_lasti:
            break
        known = known if line is None else line
    return known


class Schedule:
    """The time that a thread has been ready to run, on a core or in the queue for one.

    The rest of the time it is blocked: it sleeps, or waits for storage, a lock or another thread.
    `counted`: this kernel counts it.
    """

    def __init__(self, thread: int) -> None:
        self.counted = True
        self._file: int | None = None
        try:
            self._file = os.open(f"/proc/self/task/{thread}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self.counted = False

    def ready_seconds(self) -> float:
        """Seconds since the thread began; 0 where the kernel does not count."""
        if self._file is None:
            return 0.0
        try:
            ran, queued, _ = os.pread(self._file, 128, 0).split()
        except (OSError, ValueError):
            self.counted = False
            return 0.0
        return (int(ran) + int(queued)) / 1e9

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
