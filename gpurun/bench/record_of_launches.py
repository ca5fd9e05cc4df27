"""The record of a benchmark's launches, as the store keeps it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from gpurun import __version__
from gpurun.bench.benchmark_launcher import Launch
from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.trees.git import Repository, open_repository, short
from gpurun.errors import GpurunError
from gpurun.measure.fingerprint import fingerprint
from gpurun.measure.optional_figures import known, mean, mean_record, shared
from gpurun.records.bench.benchmark import (
    INTERRUPTED,
    BenchmarkFingerprint,
    BenchmarkLaunch,
    BenchmarkPurpose,
    BenchmarkRecord,
    new_id,
    utc_text,
)
from gpurun.records.result import ENDED_WELL
from gpurun.records.script_arguments import masked, secrets_digest

HASH = re.compile(r"[0-9a-fA-F]{7,64}")
TURNED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF", "CUDA_LAUNCH_BLOCKING")
"""Variables that decide how fast the same code runs."""


@dataclass(frozen=True)
class Version:
    """The launched code: a commit, its branch, and `dirty` if the tree differs from the commit."""

    commit: str | None = None
    branch: str | None = None
    dirty: bool | None = None


def version_of(repository: Repository) -> Version:
    """The version of the user's working tree."""
    return Version(repository.head(), repository.branch(), repository.changes().dirty)


def version_here(folder: Path, commit: str | None = None) -> Version:
    """The version of the folder by git; without git it is unknown.

    `commit`: what it has to be, by its full or shortened hash. Where there is no git, that is
    believed; where git knows better, it is a `GpurunError`.
    """
    if commit is not None and not HASH.fullmatch(commit):
        raise GpurunError(
            f"--commit-sha {commit!r} is no hash of a commit", "name 7 digits or more"
        )
    try:
        version = version_of(open_repository(folder))
    except GpurunError:
        return Version(commit)
    if commit is None:
        return version
    assert version.commit is not None
    if not version.commit.startswith(commit.lower()):
        raise GpurunError(
            f"--commit-sha {commit} is not checked out: HEAD is {short(version.commit)}",
            f"check it out first: git checkout {commit}",
        )
    if version.dirty:
        raise GpurunError(
            f"--commit-sha {commit} is checked out with uncommitted changes",
            "commit or undo them: git status shows which",
        )
    return version


def launch_record(launch: Launch) -> BenchmarkLaunch:
    """The raw values of a launch."""
    result = launch.result
    reasons = (reason for device in result.devices for reason in device.throttle_reasons)
    return BenchmarkLaunch(
        status=_status(launch),
        samples_per_second=result.samples_per_second,
        step_time_ms=result.step_time_ms,
        gpu_utilization_percent=result.gpu_utilization_percent,
        gpu_utilization_source=result.gpu_utilization_source,
        peak_memory_bytes=result.peak_memory_bytes,
        energy_joules=result.energy_joules,
        joules_per_sample=result.joules_per_sample,
        measured_steps=result.measured_steps,
        measured_seconds=result.measured_seconds,
        throttle_reasons=tuple(dict.fromkeys(reasons)),
        foreign_processes=max(known(d.foreign_processes for d in result.devices), default=None),
        cores_lost_percent=result.cores_lost_percent,
        run_dir=str(launch.folder),
        error=launch.error or None,
        planted_step_seconds=launch.planted_step_seconds,
        loss_curve=launch.loss_curve,
    )


def record_of(
    benchmark: Benchmark,
    launches: Sequence[Launch],
    version: Version,
    purpose: BenchmarkPurpose,
    *,
    interrupted: bool = False,
) -> BenchmarkRecord:
    """The record of launches of one tree; there is at least one.

    `interrupted`: a signal ended the benchmark before its last launch.
    """
    useful = [launch.result for launch in launches if not launch.error]
    failed = next((launch for launch in launches if launch.error), None)
    ended = INTERRUPTED if interrupted else "completed"
    now = datetime.now(timezone.utc)
    key = _fingerprint(benchmark, launches[-1])
    return BenchmarkRecord(
        id=new_id(now),
        benchmark=benchmark.name,
        script=benchmark.script,
        args=masked(benchmark.args),
        commit=version.commit,
        branch=version.branch,
        dirty=version.dirty,
        time=utc_text(now),
        status=ended if failed is None else _status(failed),
        samples_per_second=mean(r.samples_per_second for r in useful),
        step_time_ms=mean_record(r.step_time_ms for r in useful),
        gpu_utilization_percent=mean(r.gpu_utilization_percent for r in useful),
        gpu_utilization_source=shared(r.gpu_utilization_source for r in useful),
        peak_memory_bytes=max(known(r.peak_memory_bytes for r in useful), default=None),
        energy_joules=mean(r.energy_joules for r in useful),
        joules_per_sample=mean(r.joules_per_sample for r in useful),
        device=key.device,
        device_count=key.device_count,
        batch_size=next((r.batch_size for r in useful if r.batch_size is not None), None),
        steps=useful[-1].steps if useful else None,
        launches=tuple(launch_record(launch) for launch in launches),
        fingerprint=key,
        gpurun_version=__version__,
        error=None if failed is None else failed.error,
        purpose=purpose,
        parameters=next((x.parameters for x in launches if x.parameters is not None), None),
        whole=all(x.whole for x in launches if not x.error) if useful else None,
        secrets_sha256=secrets_digest(benchmark.args),
    )


def keep(
    record: BenchmarkRecord, into: Callable[[BenchmarkRecord], None], tell: Callable[[str], None]
) -> bool:
    """Enter a record into the store, and true if it is there: figures stand without a database."""
    try:
        into(record)
    except (GpurunError, OSError) as error:
        why = error.what if isinstance(error, GpurunError) else str(error)
        tell(f"the record of {record.commit} was not entered into the database: {why}")
        return False
    return True


def _status(launch: Launch) -> str:
    """A launch that was stopped when it had seen enough did what was asked of it."""
    if launch.error:
        ended_well = launch.result.status in ENDED_WELL
        return "failed" if ended_well else launch.result.status
    return "completed"


def _fingerprint(benchmark: Benchmark, launch: Launch) -> BenchmarkFingerprint:
    devices = launch.result.devices
    names = dict.fromkeys(device.device for device in devices)
    here = fingerprint((), benchmark.folder, None)
    start = launch.start
    turned = {} if start.applied is None else dict(start.applied.settings)
    return BenchmarkFingerprint(
        device=", ".join(names) or here["cpu"],
        device_count=len(devices) or max(1, round(here["cores"])),
        driver=here["driver"] if devices else None,
        torch=launch.result.environment.get("torch"),
        script=benchmark.script,
        settings={
            **{name: start.variables[name] for name in TURNED if name in start.variables},
            **turned,
        },
    )
