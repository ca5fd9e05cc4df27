"""Recordings: which file is of which profiler, its timelines, and several sources put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path

from gpurun.errors import GpurunError
from gpurun.timeline import from_kineto, from_ncu, from_nsys
from gpurun.timeline.model import Phase, Range, Timeline
from gpurun.timeline.report_exports import exported

KINDS = (
    "a run folder, a trace of torch.profiler (.json, .json.gz), a report of Nsight Systems "
    "(.nsys-rep, .sqlite) or of Nsight Compute (.ncu-rep, .csv)"
)
KINETO = (".json", ".json.gz")
NSYS = (".sqlite", ".db", ".nsys-rep", ".qdrep")
NCU = (".csv", ".ncu-rep")
_PHASES = frozenset(phase.value for phase in Phase)


def read_recordings(paths: Sequence[Path]) -> tuple[Timeline, ...]:
    """One timeline a rank. Kernel metrics of Nsight Compute join those of the other files."""
    timelines: list[Timeline] = []
    counters: list[Timeline] = []
    for path in paths:
        name = path.name.lower()
        if is_counters(path):
            with exported(path) as page:
                counters.append(from_ncu.read(page))
        elif name.endswith(NSYS):
            with exported(path) as database:
                timelines += from_nsys.read(database)
        elif name.endswith(KINETO):
            timelines.append(from_kineto.read(path))
        else:
            raise GpurunError(f"{path} is no recording that gpurun knows", f"name {KINDS}")
    if not counters:
        return tuple(timelines)
    kernels = tuple(kernel for each in counters for kernel in each.kernel_metrics or ())
    notes = tuple(note for each in counters for note in each.notes)
    all_counters = replace(counters[0], kernel_metrics=kernels, notes=notes)
    return (merged([*timelines[:1], all_counters]), *timelines[1:])


def is_counters(path: Path) -> bool:
    """The file is named as a report of Nsight Compute, which has no timeline."""
    return path.name.lower().endswith(NCU)


def merged(timelines: Sequence[Timeline]) -> Timeline:
    """One timeline. The first that measured a thing counts; its window is that of the first.

    Phases are those of the first that marked any; the other ranges of all are kept.
    """
    result = timelines[0]
    for other in timelines[1:]:
        missing = {
            field.name: getattr(other, field.name)
            for field in fields(Timeline)
            if field.name != "ranges" and getattr(result, field.name) is None
        }
        result = replace(
            result,
            sources=(*result.sources, *other.sources),
            ranges=_all_ranges(result, other),
            notes=(*result.notes, *other.notes),
            **missing,
        )
    return result


def _all_ranges(first: Timeline, other: Timeline) -> Sequence[Range] | None:
    if first.ranges is None or other.ranges is None:
        return other.ranges if first.ranges is None else first.ranges
    marked = any(each.name in _PHASES for each in first.ranges)
    more = [each for each in other.ranges if not marked or each.name not in _PHASES]
    return tuple(sorted((*first.ranges, *more), key=lambda each: (each.begin_ns, -each.end_ns)))
