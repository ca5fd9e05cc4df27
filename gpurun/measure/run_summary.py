"""A run folder's `RunResult`: the figures of all its training processes put together."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from gpurun.formatting.number_text import count
from gpurun.measure.compute_use import compute_figures
from gpurun.measure.epoch_duration import epoch_pace, epoch_seconds
from gpurun.measure.full_run import (
    drift_note,
    memory_notes,
    nonfinite_loss,
    nonfinite_note,
    throughput_drift,
)
from gpurun.measure.machine import available_memory
from gpurun.measure.measured_window import NS, Window, measured_window, unfrozen_spans
from gpurun.measure.memory_growth import growth_note, memory_growth
from gpurun.measure.optional_figures import known, mean, shared
from gpurun.measure.resource_use import Samples, device_uses, gpu_notes, host_use, read_samples
from gpurun.measure.run_events import ProcessLog, RunLog, read_attempts, read_run
from gpurun.records.events import CLOCKS, KnobEvent, StepRow
from gpurun.records.failure import Attempt
from gpurun.records.messages.traits import PARALLEL_REFUSED
from gpurun.records.parse_json import open_regular
from gpurun.records.result import (
    ENDED_WELL,
    DeviceUse,
    HostUse,
    KnobOutcome,
    RunResult,
    status_of,
)
from gpurun.records.spec import CHECKPOINT
from gpurun.rundir import read_json

N = TypeVar("N", int, float)

SHARED_TIME = 0.5
"""Processes trained at the same time if their windows share this much of the shorter one."""
FEW_STEPS = 10
"""With fewer measured steps, a note says so."""
WORST_FIRST = ("failed", "revoked", "applied", "skipped")
"""If a knob has several outcomes, the first of these counts; a revoked knob counts as skipped."""


@dataclass(frozen=True)
class RunRecords:
    """All records of a run folder, read once for all who look at them. `notes`: a line for each
    thing that could not be read."""

    run: RunLog
    samples: Samples
    attempts: tuple[Attempt, ...]
    notes: tuple[str, ...]


def read_records(run_dir: Path) -> RunRecords:
    """Read them; nothing in the folder makes this raise."""
    run, samples, notes = read_run(run_dir), read_samples(run_dir), _spec_notes(run_dir)
    attempts = read_attempts(run_dir, notes)
    return RunRecords(run, samples, attempts, (*run.notes, *samples.notes, *notes))


def _spec_notes(run_dir: Path) -> list[str]:
    try:
        read_json(run_dir / "spec.json")
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        return [f"spec.json cannot be read: {error}"]
    return []


def summarise_run(
    run_dir: Path,
    *,
    exit_code: int | None,
    wall_seconds: float,
    status: str | None = None,
    command: tuple[str, ...] | None = None,
    records: RunRecords | None = None,
) -> RunResult:
    """Read a run folder and sum it up.

    `exit_code` is the launcher's (128+n for a signal); `status` overrides what it and the events
    say; `command` defaults to the first process's arguments; `records`: those of the folder, where
    they were read already.
    """
    records = read_records(run_dir) if records is None else records
    run, samples = records.run, records.samples
    windows = [w for w in map(measured_window, run.processes) if w is not None]
    group, apart = _trained_together(windows)
    logs = [w.log for w in group] or list(run.processes)
    devices, energy_rate = _devices(samples, group)
    steps = _step_figures(group)
    host = host_use(samples, _bounds(group))
    if host is not None and any(log.turns for log in logs):
        host = replace(host, cpu_percent=None)  # it was frozen for a part of that time
    notes = gpu_notes([w.log for w in group], samples, devices)
    drift = steps["throughput_drift"]
    if drift is not None:
        notes = [drift_note(drift), *notes]
    whole = not any(log.stop is not None or log.turns for log in logs)
    growth = memory_growth(samples) if whole else None
    if growth is not None:
        notes = [growth_note(growth), *notes]
    status = status or _status(exit_code, run.processes)
    if status not in ENDED_WELL:
        notes = [*memory_notes(run.processes), *notes]
    return RunResult(
        status=status,
        exit_code=exit_code,
        wall_seconds=wall_seconds,
        host=host,
        hook_errors=_hook_errors(run_dir, run.processes),
        notes=(*records.notes, *notes, *_notes(group, apart)),
        ranks=max(len(group), 1),
        command=_command(run.processes) if command is None else command,
        attempts=records.attempts,
        **steps,
        **_device_figures(devices, energy_rate, steps["samples_per_second"]),
        **_process_figures(logs),
        memory_share=_memory_share(logs, host),
        nonfinite_loss=nonfinite_loss(logs),
        memory_growth=growth,
        emergency_checkpoint=_emergency_checkpoint(run_dir),
        **_checkpoint_figures(logs),
        **compute_figures(group, len(devices)),
        **_start_figures(run.processes, group[0] if group else None),
    )


def _step_figures(group: Sequence[Window]) -> dict[str, Any]:
    """Steps of the slowest process, samples of all, and facts of the script from the first."""
    main = group[0] if group else None
    slowest = max(group, key=_mean_step) if group else None
    return {
        "clock": main.clock.kind if main else None,
        "steps": slowest.last if slowest else 0,
        "warmup_steps": slowest.first if slowest else 0,
        "measured_steps": slowest.measured_steps if slowest else 0,
        "measured_seconds": slowest.seconds if slowest else None,
        "samples": _sum(w.samples for w in group),
        "samples_per_second": _sum(w.samples_per_second for w in group),
        "tokens_per_second": _sum(w.tokens_per_second for w in group),
        "batch_size": main.batch_size if main else None,
        "step_time_ms": slowest.step_time() if slowest else None,
        "epoch_seconds": epoch_seconds(main) if main else None,
        "epoch_pace": epoch_pace(main) if main else None,
        "split": slowest.split() if slowest else None,
        "final_loss": _final_loss(main) if main else None,
        "throughput_drift": throughput_drift(slowest) if slowest else None,
    }


def _device_figures(
    devices: Sequence[DeviceUse], watts: float | None, samples_per_second: float | None
) -> dict[str, Any]:
    rate = watts / samples_per_second if watts and samples_per_second else None
    return {
        "devices": tuple(devices),
        "gpu_utilization_percent": mean(d.gpu_utilization_percent for d in devices),
        "gpu_utilization_source": shared(d.gpu_utilization_source for d in devices),
        "energy_joules": _sum(d.energy_joules for d in devices),
        "joules_per_sample": rate,
    }


def _process_figures(logs: Sequence[ProcessLog]) -> dict[str, Any]:
    """Memory, cores, knobs and versions of the processes that trained."""
    ends = [log.end for log in logs]
    return {
        "peak_memory_bytes": _peak_memory(logs),
        "peak_reserved_bytes": _largest(end.peak_reserved_bytes for end in ends if end),
        "allocator_retries": _sum(end.allocator_retries if end else None for end in ends),
        "knobs": _knobs(logs),
        "environment": _environment(logs),
        "cores_lost_percent": max(known(map(_cores_lost, logs)), default=None),
        "core_wait_percent": max(known(map(_core_wait, logs)), default=None),
    }


def _start_figures(processes: Sequence[ProcessLog], main: Window | None) -> dict[str, Any]:
    return {
        "seconds_to_first_step": _seconds_to_first_step(processes, main) if main else None,
        "seconds_to_torch": _seconds_to_torch(main.log) if main else None,
        "startup_seconds": _startup_seconds(main) if main else None,
    }


def _cores_lost(log: ProcessLog) -> float | None:
    seen = log.cores
    if seen is None or seen.end_ns <= seen.begin_ns:
        return None
    lost = known((seen.waited_ns, seen.stolen_ns))
    if not lost or log.turns:  # its partner's turns are part of that time
        return None
    return min(100.0 * sum(lost) / (seen.end_ns - seen.begin_ns), 100.0)


def _core_wait(log: ProcessLog) -> float | None:
    seen = log.cores
    if seen is None or seen.waited_ns is None or seen.ran_ns is None:
        return None
    ready = seen.waited_ns + seen.ran_ns
    return 100.0 * seen.waited_ns / ready if ready else None


def _trained_together(windows: Sequence[Window]) -> tuple[list[Window], list[Window]]:
    """The processes whose figures belong together, lowest rank first, and those apart from them.

    They share the best clock seen, and ran at the same time as the process with most steps. An
    actor that only runs forward passes, or a job before a restart, does not belong to them.
    """
    if not windows:
        return [], []
    best = min(windows, key=lambda w: CLOCKS.index(w.clock.kind)).clock.kind
    longest = max((w for w in windows if w.clock.kind == best), key=lambda w: len(w.clock.steps))
    group = [w for w in windows if w.clock.kind == best and _overlap(w, longest)]
    group.sort(key=lambda w: w.log.process.rank or 0)
    return group, [w for w in windows if w not in group]


def _overlap(one: Window, other: Window) -> bool:
    (begin, end), (other_begin, other_end) = one.bounds_ns, other.bounds_ns
    shared = min(end, other_end) - max(begin, other_begin)
    return one is other or shared > SHARED_TIME * min(end - begin, other_end - other_begin)


def _mean_step(window: Window) -> float:
    return (window.seconds or 0.0) / max(window.measured_steps, 1)


def _status(exit_code: int | None, processes: Sequence[ProcessLog]) -> str:
    if any(log.stop is not None for log in processes) and exit_code == 0:
        return "stopped"
    status = status_of(exit_code)
    given_up = any(t.trait == PARALLEL_REFUSED for log in processes for t in log.traits)
    return "refused" if given_up and status == "failed" else status


def _bounds(group: Sequence[Window]) -> tuple[int, int] | None:
    """Wall clock at both ends of the time in which all of the group was measured."""
    if not group:
        return None
    return max(w.bounds_ns[0] for w in group), min(w.bounds_ns[1] for w in group)


def _devices(samples: Samples, group: Sequence[Window]) -> tuple[list[DeviceUse], float | None]:
    """The devices that the group used while all of it was measured, and their watts in sum."""
    bounds = _bounds(group)
    if bounds is None:
        return [], None
    used = _cuda_indices(group)
    found = device_uses(samples, *bounds)
    devices = [use for index, use in found if used is None or index in used]
    rate = _sum(
        None if d.energy_joules is None else d.energy_joules / d.window_seconds for d in devices
    )
    return devices, rate


def _cuda_indices(group: Sequence[Window]) -> set[int | None] | None:
    """CUDA indices of the root modules' devices; None if that does not tell all that was used.

    Where some are used the index None is too: CUDA's order may not be certain.
    """
    used: set[int | None] = set()
    for log in (w.log for w in group):
        if any(t.trait == "data_parallel" for t in log.traits):
            return None
        for root in log.roots:
            name, _, number = root.device.partition(":")
            if name == "cuda":
                used.add(int(number) if number.isdigit() else 0)
    # ranks that hide the others' devices from themselves all say cuda:0
    if not used:
        return used
    return None if len(used) < len(group) else {*used, None}


def _final_loss(window: Window) -> float | None:
    loss = window.clock.steps.last_loss()
    return None if loss == math.inf else loss


def _peak_memory(logs: Sequence[ProcessLog]) -> int | None:
    """Peak of the process that needed most: on its device where CUDA is used, else resident."""
    ends = [log.end for log in logs if log.end is not None]
    if any(log.on_gpu for log in logs):
        return _largest(end.peak_allocated_bytes for end in ends)
    return _largest(end.peak_rss_bytes for end in ends)


def _memory_share(logs: Sequence[ProcessLog], host: HostUse | None) -> float | None:
    """The peak as a fraction of the memory of the device that the model is on."""
    if any(log.on_gpu for log in logs):
        sizes = known(root.device_memory_bytes for log in logs for root in log.roots)
        memory = min(sizes, default=None)
        peak = _largest(log.end.peak_reserved_bytes for log in logs if log.end)
    else:
        memory = available_memory()
        peak = None if host is None else host.peak_rss_bytes
    return None if peak is None or not memory else peak / memory


def _checkpoint_figures(logs: Sequence[ProcessLog]) -> dict[str, Any]:
    """Saves of the rank that spent most time in them."""
    saved = [
        (log.end.save_seconds, log.end.saves)
        for log in logs
        if log.end is not None and log.end.save_seconds is not None
    ]
    seconds, saves = max(saved, default=(None, None))
    return {"checkpoint_saves": saves, "checkpoint_seconds": seconds}


def _seconds_to_first_step(processes: Sequence[ProcessLog], main: Window) -> float:
    first = main.log.unix_time_ns(main.clock.steps[StepRow.END_NS][0])
    return (first - min(log.process.unix_time_ns for log in processes)) / NS


def _seconds_to_torch(log: ProcessLog) -> float | None:
    if log.torch is None or log.torch.clock_ns is None:
        return None
    return (log.torch.clock_ns - log.process.clock_ns) / NS


def _startup_seconds(main: Window) -> float | None:
    """None for a run that ended before it was steady."""
    ends = main.clock.steps[StepRow.END_NS]
    steps = min(main.first, bisect_right(ends, unfrozen_spans(main.log)[0][1]))
    if not steps or not main.measured_steps:
        return None
    mean = sum(main.durations_ns) / main.measured_steps
    return max(ends[steps - 1] - main.log.process.clock_ns - steps * mean, 0.0) / NS


def _knobs(logs: Sequence[ProcessLog]) -> tuple[KnobOutcome, ...]:
    """One outcome a knob, in the order they were turned."""
    events: dict[str, list[KnobEvent]] = {}
    for log in logs:
        for event in log.knobs:
            events.setdefault(event.knob, []).append(event)
    outcomes = []
    for knob, seen in events.items():
        known = [o for o in WORST_FIRST if any(e.outcome == o for e in seen)]
        outcome = known[0] if known else seen[0].outcome
        details = dict.fromkeys(e.detail for e in seen if e.outcome == outcome and e.detail)
        shown = "skipped" if outcome == "revoked" else outcome
        outcomes.append(KnobOutcome(knob, shown, "; ".join(details)))
    return tuple(outcomes)


def _emergency_checkpoint(run_dir: Path) -> str | None:
    """The latest of the run: after a restart of the ranks there may be several."""
    found = sorted(run_dir.glob(f"*{CHECKPOINT}"), key=lambda path: path.stat().st_mtime)
    return found[-1].name if found else None


def _hook_errors(run_dir: Path, processes: Sequence[ProcessLog]) -> tuple[str, ...]:
    errors = dict.fromkeys(f"{e.hook}: {e.error}" for log in processes for e in log.hooks)
    try:
        with open_regular(run_dir / "spec.json.error") as file:
            start = file.read().decode("utf-8", "replace").strip()
    except OSError:
        return tuple(errors)
    return (f"start: {start}", *errors)


def _notes(group: Sequence[Window], apart: Sequence[Window]) -> list[str]:
    if not group:
        return ["no training was seen"]
    notes = []
    if group[0].clock.kind == "forward":
        notes.append("no training step was seen: the figures are of forward passes")
    if any(w.measured_steps < FEW_STEPS for w in group):
        notes.append(f"only {count(min(w.measured_steps for w in group), 'step')} after warm-up")
    if not all(w.clock.loaders for w in group) and all(w.samples for w in group):
        notes.append("samples are counted at the model's input: no loader hands out indices")
    if any(w.log.end is None for w in group):
        notes.append("a process ended without its closing line: its peak memory is not known")
    if group[0].clock.steps.last_loss() == math.inf:
        notes.append("the last loss was not finite")
    nonfinite = nonfinite_loss([w.log for w in group])
    if nonfinite is not None:
        notes.append(nonfinite_note(nonfinite))
    if apart:
        others = count(len(apart), "further process")
        notes.append(f"{others} took steps at other times or only forward")
    return notes


def _command(processes: Sequence[ProcessLog]) -> tuple[str, ...]:
    return processes[0].process.argv if processes else ()


def _environment(logs: Sequence[ProcessLog]) -> dict[str, object]:
    if not logs:
        return {}
    torch = logs[0].torch
    return {"python": logs[0].process.python, "torch": torch.version if torch else None}


def _sum(values: Iterable[N | None]) -> N | None:
    """The sum; None if there is nothing to add or a part is not known."""
    listed = list(values)
    measured = known(listed)
    return sum(measured[1:], measured[0]) if measured and len(measured) == len(listed) else None


def _largest(values: Iterable[int | None]) -> int | None:
    return max(known(values), default=None)
