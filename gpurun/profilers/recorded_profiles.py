"""The profiled windows of a run folder: one timeline a training process."""

from __future__ import annotations

import statistics
from array import array
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from gpurun.errors import GpurunError
from gpurun.measure.measured_window import Window
from gpurun.measure.run_events import ProcessLog, RunLog, read_run
from gpurun.measure.step_table import UNKNOWN
from gpurun.measure.training_clock import RecordedClock, step_clock
from gpurun.profilers import all_profilers
from gpurun.records.events import StepRow
from gpurun.records.messages.profile_events import ProfileEvent
from gpurun.replay.replay_check import StepTimes
from gpurun.rundir import read_json
from gpurun.timeline.model import Timeline
from gpurun.timeline.recordings import merged

FOLDER = "profile"
"""Folder of a run's folder with what profilers wrote themselves."""
FEWEST_STEPS = 5
"""Fewer steps, inside the window or outside of it, say nothing of what profiling costs."""
AROUND = 200
"""The window is compared with so many steps before and behind it at most."""
ENOUGH_STEPS = 20
"""So many steps outside of the window hold twice what a script does every ten steps."""
LONG = 2.0
"""A step that takes so many times the median does what a script does every few steps."""
FIRST_STEPS = 3
"""So many first steps are left out of those that the window is compared with."""


@dataclass(frozen=True)
class RecordedProfile:
    """The window of one training process.

    `pace`: of its steps and of those outside; None where too few are outside. `profiler_seconds`:
    what profilers took to start and stop. `failures`: profilers that recorded nothing, each with
    its reason. `plain`: the steps whose parts are told, unprofiled ones where there are enough.
    """

    log: ProcessLog
    timeline: Timeline
    steps: int
    pace: StepTimes | None
    profiler_seconds: float
    failures: tuple[str, ...]
    plain: Window | None = None

    @property
    def overhead_percent(self) -> float | None:
        """By how much the median step inside the window is slower than outside."""
        times = self.pace
        return None if times is None else (times.profiled_ms / times.plain_ms - 1) * 100

    @property
    def rank(self) -> int | None:
        """The rank of the process; None outside a distributed job."""
        return self.log.process.rank


def recorded_profiles(run_dir: Path, run: RunLog | None = None) -> tuple[RecordedProfile, ...]:
    """The windows of a run in the order of the ranks; empty where none was profiled.

    `run`: the events of the folder, where they were read already.
    """
    processes = (read_run(run_dir) if run is None else run).processes
    found = [_recorded(log, log.profile, run_dir / FOLDER) for log in processes if log.profile]
    return tuple(sorted(found, key=lambda each: each.rank or 0))


def was_to_be_profiled(run_dir: Path) -> bool:
    """The run's spec asks for a window."""
    try:
        spec = read_json(run_dir / "spec.json")
    except (OSError, ValueError):
        return False
    return isinstance(spec, dict) and spec.get("profile") is not None


def _refuse_odd_values(log: ProcessLog, window: ProfileEvent) -> None:
    """Samples and parts of a step have times of a clock, and functions that are there."""
    seen = log.host_samples
    moments, count = (seen.moments, len(seen.functions)) if seen is not None else ((), 0)
    times = [window.begin_ns, window.end_ns, *(at for at, _ in moments)]
    times += [at for _, *both in window.phases for at in both]
    places = (place for _, stack in moments for place, _ in stack)
    if any(not 0 <= at < 2**62 for at in times) or any(not 0 <= at < count for at in places):
        what = f"the profile of process {log.process.pid} is damaged: it has impossible values"
        raise GpurunError(what, "profile the script again")


def _recorded(log: ProcessLog, window: ProfileEvent, folder: Path) -> RecordedProfile:
    _refuse_odd_values(log, window)
    timelines, failures = [], []
    for profiler in all_profilers():
        try:
            timeline = profiler.timeline(log, window, folder)
        except (GpurunError, OSError, ValueError) as error:
            failures.append(f"{profiler.title}: {error}")
            continue
        if timeline is not None:
            timelines.append(timeline)
    states, clock = window.profilers, step_clock(log)
    failures += [f"{each.name}: {each.failure}" for each in states if each.failure is not None]
    return RecordedProfile(
        log=log,
        timeline=merged(timelines),
        steps=window.steps,
        pace=_pace(window, clock),
        profiler_seconds=sum(each.seconds for each in states),
        failures=tuple(failures),
        plain=None if clock is None else _plain_steps(log, window, clock),
    )


def _plain_steps(log: ProcessLog, event: ProfileEvent, clock: RecordedClock) -> Window | None:
    """The steps behind the window, or those before it if they are more; else those inside.

    Profilers slow down each part of a step by another factor, and their start and stop stand in
    the steps at both ends of the window. Before a later window there are other windows.
    """
    ends = clock.steps[StepRow.END_NS]
    first = bisect_right(ends, event.begin_ns - 1)
    inside = first + 1, max(bisect_right(ends, event.end_ns), first + 1)
    before = FIRST_STEPS, max(first, FIRST_STEPS)
    if event.number > 1:
        before = first, first
    behind = min(bisect_right(ends, _stopped_ns(event)) + 1, len(ends)), len(ends)
    begin, end = max(behind, before, key=lambda rows: rows[1] - rows[0])
    if end - begin < ENOUGH_STEPS:
        begin, end = inside
    if end - begin < FEWEST_STEPS:
        return None
    durations = array("q", (ends[i] - ends[i - 1] for i in range(begin, end)))
    whole = _whole_periods(durations)
    return Window(log, clock, end - whole, end, durations[-whole:], device_time=False)


def _whole_periods(durations: array[int]) -> int:
    """The most steps that hold as many long ones as their mean should: whole distances of these."""
    usual = statistics.median(durations)
    long = [i for i, each in enumerate(durations) if each > LONG * usual]
    period = round(statistics.median(b - a for a, b in pairwise(long))) if len(long) > 1 else 1
    return len(durations) // period * period


def _stopped_ns(event: ProfileEvent) -> int:
    """When the profilers had stopped, at the latest."""
    return event.end_ns + round(sum(each.seconds for each in event.profilers) * 1e9)


def _pace(event: ProfileEvent, clock: RecordedClock | None) -> StepTimes | None:
    """The median step of the window, and that of the steps before and after it.

    Steps are those of the device where it marked their ends: the host may run ahead of it. The step
    in which profilers start and the one in which they stop count on neither side.
    """
    if clock is None:
        return None
    ends = clock.steps[StepRow.END_NS]
    later = range(FIRST_STEPS, len(ends))
    inside = [i for i in later if event.begin_ns <= ends[i - 1] and ends[i] <= event.end_ns]
    over = _stopped_ns(event)
    before = [i for i in later if ends[i] < event.begin_ns]
    outside = before[-AROUND:] + [i for i in later if ends[i - 1] > over][:AROUND]
    if min(len(inside), len(outside)) < FEWEST_STEPS:
        return None
    device = clock.steps[StepRow.DEVICE_NS]
    on_device = all(device[i] != UNKNOWN for i in (*inside, *outside))

    def median(steps: list[int]) -> float:
        return statistics.median(device[i] if on_device else ends[i] - ends[i - 1] for i in steps)

    found = StepTimes(median(inside) / 1e6, median(outside) / 1e6)
    return found if found.plain_ms > 0 else None
