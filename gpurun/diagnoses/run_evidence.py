"""Evidence from a run folder: its result, its events and the samples of its devices."""

from __future__ import annotations

import linecache
import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from gpurun.diagnoses.evidence import Evidence
from gpurun.diagnoses.thresholds import Thresholds
from gpurun.errors import GpurunError
from gpurun.measure.measured_window import measured_window
from gpurun.measure.optional_figures import known
from gpurun.measure.run_events import ProcessLog, decode_lenient
from gpurun.measure.run_summary import RunRecords, read_records, summarise_run
from gpurun.measure.training_clock import training_loaders
from gpurun.records.messages.profile_events import FunctionSamples
from gpurun.records.messages.turns import ORDERS
from gpurun.records.result import DeviceUse, RunResult
from gpurun.records.samples import DeviceSample
from gpurun.rundir import read_json
from gpurun.timeline.device_work import steady
from gpurun.timeline.figures_of import figures_of
from gpurun.timeline.model import Timeline

RESULT_FILE = "result.json"


def evidence_of_run(
    folder: Path,
    thresholds: Thresholds,
    timelines: Sequence[Timeline] = (),
    records: RunRecords | None = None,
) -> Evidence:
    """The evidence of a run folder and its ranks' timelines. `records`: if read already."""
    records = records or read_records(folder)
    if not (run := records.run).processes:
        raise GpurunError(f"{folder} holds no record of a run", "name a folder below .gpurun/runs")
    result = read_result(folder, records)
    if result.host is not None and (folder / "control" / ORDERS).exists():
        # one side of a live pair: while it is frozen it seems to wait for something
        host = replace(result.host, cpu_percent=None, steady_cpu_percent=None)
        result = replace(result, host=host)
    found = known(map(measured_window, run.processes))
    windows = [window for window in found if window.clock.kind == result.clock]
    windows.sort(key=lambda window: window.log.process.rank or 0)
    begin = max((window.bounds_ns[0] for window in windows), default=0)  # all ranks are measured
    end = min((window.bounds_ns[1] for window in windows), default=math.inf)
    logs = [window.log for window in windows] or list(run.processes)
    waits = next((log.waits for log in logs if log.waits is not None), None)
    seen = evidence_of_timelines(timelines, thresholds)
    return replace(
        seen,
        result=result,
        rank_work_ms=tuple(window.own_work_ms() for window in windows),
        window=windows[0] if windows else None,
        host_samples=tuple(s for s in records.samples.host if begin <= s.unix_time_ns <= end),
        device_samples=tuple(s for s in records.samples.device if begin <= s.unix_time_ns <= end),
        xids=xids_of(records.samples.device, result.devices),
        loaders=training_loaders(windows[0].log, windows[0].clock) if windows else (),
        roots=tuple(root for log in logs for root in log.roots),
        reads=None if waits is None else waits.reads,
        read_steps=None if waits is None else waits.steps,
        traits={trait.trait: trait.detail for log in logs for trait in log.traits},
        switches=tuple(dict.fromkeys(s for log in logs if log.torch for s in log.torch.switches)),
        threads=next((log.torch.threads for log in logs if log.torch), None),
        source_lines=_source_lines(seen),
        worker_functions=_of_workers(run.processes),
    )


def evidence_of_timelines(timelines: Sequence[Timeline], thresholds: Thresholds) -> Evidence:
    """The evidence of recordings alone, one a rank: that of the rank that works longest."""
    if not timelines:
        return Evidence(thresholds=thresholds)
    timelines = tuple(map(steady, timelines))
    figures = tuple(map(figures_of, timelines))
    exposed = [f.communication.exposed_share if f.communication else 0.0 for f in figures]
    slowest = min(range(len(figures)), key=exposed.__getitem__)
    return Evidence(
        figures=figures[slowest],
        timeline=timelines[slowest],
        rank=timelines[slowest].rank,
        rank_figures=figures if len(figures) > 1 else (),
        rank_functions=tuple(timeline.host_functions or () for timeline in timelines),
        thresholds=thresholds,
    )


def read_result(folder: Path, records: RunRecords | None = None) -> RunResult:
    """The result of a run; of one that crashed, what its events tell."""
    path = folder / RESULT_FILE
    if not path.exists():
        return summarise_run(folder, exit_code=None, wall_seconds=0.0, records=records)
    try:
        return decode_lenient(RunResult, read_json(path))
    except (OSError, ValueError, AttributeError) as error:
        raise GpurunError(f"{path} cannot be read: {error}", "run the script again") from None


def xids_of(
    samples: Iterable[DeviceSample], used: Iterable[DeviceUse]
) -> tuple[tuple[str, int], ...]:
    """The driver's errors in the whole run, each after the GPU; of all GPUs that are visible where
    the run ended before any use of one was measured."""
    uuids = {device.uuid for device in used}
    return tuple(
        (s.uuid if s.cuda_index is None else f"GPU {s.cuda_index}", xid)
        for s in samples
        for xid in s.xids or ()
        if not uuids or s.uuid in uuids
    )


def _of_workers(processes: Sequence[ProcessLog]) -> tuple[FunctionSamples, ...]:
    """The functions in which worker processes fetched batches, of all of them together."""
    found: dict[tuple[str, str], list[FunctionSamples]] = defaultdict(list)
    for log in processes:
        if log.host_samples is not None and log.profile is None and not log.steps:
            for each in log.host_samples.functions:
                found[each.file, each.function].append(each)
    return tuple(map(_sum, found.values()))


def _sum(alike: Sequence[FunctionSamples]) -> FunctionSamples:
    """One function of several processes, with the line of the one that spent most time in it."""
    blocked = known(each.blocked_seconds for each in alike)
    return replace(
        max(alike, key=lambda each: each.total_seconds),
        self_seconds=sum(each.self_seconds for each in alike),
        total_seconds=sum(each.total_seconds for each in alike),
        blocked_seconds=sum(blocked) if len(blocked) == len(alike) else None,
    )


def _source_lines(evidence: Evidence) -> dict[tuple[str, int], str]:
    """The lines of the user's functions that were seen, as far as the file is still there."""
    functions = evidence.host_functions
    moments = None if evidence.timeline is None else evidence.timeline.host_moments
    frames = {frame for _, stack in moments or () for frame in stack}
    seen = [*((f, f.line) for f in functions), *((functions[at], line) for at, line in frames)]
    places = {(f.file, line) for f, line in seen if f.users_own and Path(f.file).is_file()}
    return {(file, line): linecache.getline(file, line).strip() for file, line in places}
