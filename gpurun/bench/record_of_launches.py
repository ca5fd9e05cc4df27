"""The record of a benchmark's launches, as the store keeps it; launches of the user's own tree."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from gpurun.bench.benchmark_launcher import Launch, Launcher, Tell
from gpurun.bench.benchmarks import Benchmark
from gpurun.bench.trees.git import Repository, open_repository, short, without_redirection
from gpurun.bench.trees.installed_packages import Tree
from gpurun.bench.trees.prepared_sides import CURRENT, Side
from gpurun.errors import GpurunError
from gpurun.isolation.isolation_mode import Mode
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
from gpurun.records.codec import from_json
from gpurun.records.result import ENDED_WELL, RunResult
from gpurun.records.scaling import ScalingReport
from gpurun.records.script_arguments import masked, secrets_digest
from gpurun.records.spec import Trees
from gpurun.rundir import read_json
from gpurun.trials.stop_rules import first_rule, later_rule
from gpurun.version import VERSION

DEFAULT_LAUNCHES = 5
"""Launches differ by more than the steps of one do; fewer say little of how much."""
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
    """The version of the user's working tree. CI checks out no branch, but names it."""
    named = (os.environ.get(name) for name in ("GITHUB_HEAD_REF", "GITHUB_REF_NAME"))
    branch = repository.branch() or next(filter(None, named), None)
    return Version(repository.head(), branch, bool(repository.changed_files()))


def version_here(folder: Path, commit: str | None = None, branch: str | None = None) -> Version:
    """The version of the folder by git; without git it is unknown.

    `commit`: what it has to be, by its full or shortened hash. Where there is no git, that is
    believed; where git knows better, it is a `GpurunError`. `branch`: its name, whatever git says.
    """
    if commit is not None and not HASH.fullmatch(commit):
        raise GpurunError(
            f"--commit-sha {commit!r} is no hash of a commit", "name 7 digits or more"
        )
    try:
        version = version_of(open_repository(folder))
    except GpurunError:
        return Version(commit, branch)
    version = replace(version, branch=branch or version.branch)
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
    """The raw values of a launch: fields of its result, and what is not in one."""
    result = launch.result
    reasons = (reason for device in result.devices for reason in device.throttle_reasons)
    own: dict[str, Any] = {
        "status": _status(launch),
        "throttle_reasons": tuple(dict.fromkeys(reasons)),
        "foreign_processes": max(known(d.foreign_processes for d in result.devices), default=None),
        "run_dir": str(launch.folder),
        "error": launch.error or None,
        "planted_step_seconds": launch.planted_step_seconds,
        "loss_curve": launch.loss_curve,
    }
    names = {field.name for field in fields(BenchmarkLaunch)} - own.keys()
    return BenchmarkLaunch(**{name: getattr(result, name) for name in names}, **own)


def run_figures(of: Sequence[RunResult] | Sequence[BenchmarkRecord]) -> dict[str, Any]:
    """The figures of several launches, or of several runs, together."""
    means = ("samples_per_second", "gpu_utilization_percent", "energy_joules", "joules_per_sample")
    return {
        **{name: mean(getattr(one, name) for one in of) for name in means},
        "step_time_ms": mean_record(one.step_time_ms for one in of),
        "gpu_utilization_source": shared(one.gpu_utilization_source for one in of),
        "peak_memory_bytes": max(known(one.peak_memory_bytes for one in of), default=None),
    }


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
    figures = run_figures(useful)
    peak = figures["peak_memory_bytes"]
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
        **figures,
        device=key.device,
        device_count=key.device_count,
        batch_size=next((r.batch_size for r in useful if r.batch_size is not None), None),
        steps=useful[-1].steps if useful else None,
        launches=tuple(launch_record(launch) for launch in launches),
        fingerprint=key,
        gpurun_version=VERSION,
        error=None if failed is None else failed.error,
        purpose=purpose,
        parameters=next((x.parameters for x in launches if x.parameters is not None), None),
        whole=all(x.whole for x in launches if not x.error) if useful else None,
        secrets_sha256=secrets_digest(benchmark.args),
        gpu_utilization=figures["gpu_utilization_percent"],
        memory_usage_gb=None if peak is None else peak / 1e9,
        files_opened=_files_opened(launches),
    )


def _files_opened(launches: Sequence[Launch]) -> tuple[str, ...] | None:
    told = [launch.files_opened for launch in launches]
    if None in told:
        return None
    return tuple(sorted({file for files in told for file in files or ()}))


def scaling_efficiency(home: Path, record: BenchmarkRecord) -> float | None:
    """The efficiency at most devices of the newest `--scale` in the folder of records that measured
    the same command, commit and device; None if there is none."""
    if record.commit is None or record.dirty:
        return None
    for path in sorted((home / "runs").glob("*/scaling.json"), reverse=True):
        try:
            found = from_json(ScalingReport, read_json(path))
        except (OSError, ValueError):
            continue
        command = (os.path.normpath(found.command[0]), *found.command[1:])
        wanted = (os.path.normpath(record.script), *record.args)
        if (found.commit, found.device, command) == (record.commit, record.device, wanted):
            points = [x for x in found.points if x.efficiency is not None and x.gpus > 1]
            return max(points, key=lambda x: x.gpus).efficiency if points else None
    return None


def measure(
    benchmark: Benchmark, folder: Path, mode: Mode, launches: int, tell: Tell, version: Version
) -> BenchmarkRecord:
    """The record of so many launches, after one that warms up; it ends at one that fails.

    Interrupted, it is that of the launches until then; KeyboardInterrupt where there is none.
    `folder` receives their run folders; `version` is what is measured. Nothing is set up: the
    user's environment is measured.
    """
    start = _watched(users_side(benchmark))
    launcher = Launcher(benchmark, folder, mode, tell)
    measured: list[Launch] = []
    interrupted = False
    try:
        tell(f"first launch of {benchmark.name}, to warm it up")
        first = launcher.run(start, first_rule(benchmark.steps), first=True)
        rule = later_rule(benchmark.steps, [first.result])
        if first.error:
            measured.append(first)
        while len(measured) < launches and not (measured and measured[-1].error):
            measured.append(launcher.run(start, rule))
            tell(f"launch {len(measured)}: {_shown(measured[-1])}")
    except KeyboardInterrupt:
        if not measured:
            raise
        interrupted = True
    finally:
        launcher.close()
    if measured[-1].error:
        for line in measured[-1].printed:
            tell(f"output: {line}")
    return record_of(benchmark, measured, version, BenchmarkPurpose.BENCH, interrupted=interrupted)


def _watched(side: Side) -> Side:
    """The side with a record of the files that it opens, if it lies in a repository."""
    try:
        root = open_repository(side.folder).root.resolve()
    except GpurunError:
        return side
    return replace(side, tree=Tree(root), trees=Trees(own=str(root), others=()))


def users_side(benchmark: Benchmark) -> Side:
    """The user's own tree, as it is."""
    folder = benchmark.folder
    variables = {**without_redirection(os.environ), **benchmark.env, "PWD": str(folder)}
    return Side(CURRENT, "", Tree(folder.resolve()), folder, Path(sys.executable), variables)


def _shown(launch: Launch) -> str:
    rate, steps = launch.result.samples_per_second, launch.steps_per_second or 0.0
    return launch.error or (f"{steps:.4g} steps/s" if rate is None else f"{rate:.4g} samples/s")


def keep(
    record: BenchmarkRecord, into: Callable[[BenchmarkRecord], None], tell: Callable[[str], None]
) -> bool:
    """Enter a record into the store, and true if it is there: figures stand without a database."""
    try:
        into(record)
    except (GpurunError, OSError) as error:
        why = error.what if isinstance(error, GpurunError) else str(error)
        name = record.commit or record.benchmark
        tell(f"the record of {name} was not entered into the database: {why}")
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
