"""Recordings made elsewhere: which file is of which profiler, and its timelines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpurun.errors import GpurunError
from gpurun.timeline import from_kineto, from_ncu, from_nsys
from gpurun.timeline.merge import merged
from gpurun.timeline.model import Timeline
from gpurun.timeline.report_exports import ncu_page, nsys_export

KINDS = (
    "a run folder, a trace of torch.profiler (.json, .json.gz), a report of Nsight Systems "
    "(.nsys-rep, .sqlite) or of Nsight Compute (.ncu-rep, .csv)"
)
KINETO = (".json", ".json.gz")
NSYS = (".sqlite", ".db")
NCU = (".csv",)
NSYS_REPORTS = (".nsys-rep", ".qdrep")
NCU_REPORTS = (".ncu-rep",)


def read_recordings(paths: Sequence[Path]) -> tuple[Timeline, ...]:
    """One timeline a rank. Kernel metrics of Nsight Compute join those of the other files."""
    timelines: list[Timeline] = []
    counters: list[Timeline] = []
    for path in paths:
        if _ends(path, NCU_REPORTS):
            with ncu_page(path) as page:
                counters.append(from_ncu.read(page))
        elif _ends(path, NCU):
            counters.append(from_ncu.read(path))
        elif _ends(path, NSYS_REPORTS):
            with nsys_export(path) as database:
                timelines += from_nsys.read(database)
        elif _ends(path, NSYS):
            timelines += from_nsys.read(path)
        elif _ends(path, KINETO):
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
    return _ends(path, (*NCU, *NCU_REPORTS))


def _ends(path: Path, suffixes: Sequence[str]) -> bool:
    return path.name.lower().endswith(tuple(suffixes))
