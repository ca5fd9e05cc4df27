"""Stored records of a benchmark: one for each run, and the accepted baselines.

A run is one side of a comparison: some launches of one script at one commit.
"""

from __future__ import annotations

import enum
import hashlib
import json
import os
import re
from datetime import datetime, timezone
from typing import Any

from gpurun.records.codec import RecordError, to_json
from gpurun.records.record import record
from gpurun.records.result import StepTime

BENCHMARK_SCHEMA = "gpurun/benchmark@1"
BASELINE_SCHEMA = "gpurun/baseline@1"
EXPORT_SCHEMA = "gpurun/benchmarks@1"

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""An id names a file, so that one which came from elsewhere may hold no path."""
MOST_LETTERS = 200
"""The longest name of a benchmark: databases index it."""
MOST = 2**63 - 1
"""The largest whole number that a database holds."""


class BenchmarkPurpose(enum.Enum):
    """The purpose of a benchmark's run: a search or a planted slow-down does not belong to a
    history. "optimize" stands in records of earlier versions."""

    BENCH = "bench"
    COMPARE = "compare"
    BISECT = "bisect"
    SETTINGS = "settings"
    OPTIMIZE = "optimize"
    SELFTEST = "selftest"


INTERRUPTED = "interrupted"
"""Status of a record of fewer launches than the benchmark was to have: a signal ended it."""


@record
class BenchmarkFingerprint:
    """The key of a history: figures of two fingerprints are never compared.

    The text of the script does not belong to it, because it changes from commit to commit. Nor do
    its arguments and its batch size: a changed workload is refused with its name. `device`: the
    GPU's name, the processor's on the CPU. `settings`: what gpurun or the environment turned.
    """

    device: str | None
    device_count: int | None
    driver: str | None
    torch: str | None
    script: str
    settings: dict[str, Any]

    @property
    def key(self) -> str:
        """Sixteen hexadecimal digits that stand for it in the store."""
        text = json.dumps(to_json(self), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@record
class LossCurve:
    """The losses of one launch in a bounded number of points.

    `points`: steps 1 to 16 one by one, then 16 means of 2 steps each, 16 of 4, and so on. None: no
    loss was seen in those steps. The points end before `nonfinite_step`, the first step whose loss
    is NaN or infinite; that is None where all losses are finite. Steps count from 1.
    """

    points: tuple[float | None, ...]
    nonfinite_step: int | None = None


@record
class BenchmarkLaunch:
    """The raw values of one launch, as its `RunResult` has them. None: not measured.

    `error` is the cause where it crashed. `throttle_reasons`, `foreign_processes` and
    `cores_lost_percent` are grounds, apart from its timing, to launch it again.
    `planted_step_seconds`: what a slow-down planted on purpose was seen to add to each step, None
    where nothing was planted. `loss_curve`: None where no loss was seen.
    """

    status: str
    samples_per_second: float | None
    step_time_ms: StepTime | None
    gpu_utilization_percent: float | None
    gpu_utilization_source: str | None
    peak_memory_bytes: int | None
    energy_joules: float | None
    joules_per_sample: float | None
    measured_steps: int | None
    measured_seconds: float | None
    throttle_reasons: tuple[str, ...] = ()
    foreign_processes: int | None = None
    cores_lost_percent: float | None = None
    run_dir: str | None = None
    error: str | None = None
    planted_step_seconds: float | None = None
    loss_curve: LossCurve | None = None


@record
class BenchmarkRecord:
    """One run of a benchmark: all launches of one side.

    The figures are those of the run, made from the `launches` that completed; None where nothing
    was measured. `status`: that of `RunResult`, or `INTERRUPTED`; else `error` is the cause where
    it is not "completed".
    `time`: when it ended, ISO 8601 with its offset from UTC (see `utc_text`). `dirty`: the working
    tree differed from `commit`. `batch_size`: samples a step. `steps`: those of one launch;
    `whole`: the script ended by itself after them, it was not stopped. `parameters`: of the model.
    `secrets_sha256`: four digits for the secrets that `args` shows masked, None without any.
    `gpu_utilization` (percent) and `memory_usage_gb` (10^9 bytes) are the same figures by the names
    that other pipelines read. `multi_gpu_scaling_efficiency`: a fraction, at most devices of the
    newest `gpurun --scale` of this command, commit and device; None where there is none.
    `files_opened`: those of the repository that the launches opened, from its top folder; None
    where some may be missing.
    """

    id: str
    benchmark: str
    script: str
    args: tuple[str, ...]
    commit: str | None
    branch: str | None
    dirty: bool | None
    time: str
    status: str
    samples_per_second: float | None
    step_time_ms: StepTime | None
    gpu_utilization_percent: float | None
    gpu_utilization_source: str | None
    peak_memory_bytes: int | None
    energy_joules: float | None
    joules_per_sample: float | None
    device: str | None
    device_count: int | None
    batch_size: float | None
    steps: int | None
    launches: tuple[BenchmarkLaunch, ...]
    fingerprint: BenchmarkFingerprint
    gpurun_version: str
    error: str | None = None
    purpose: BenchmarkPurpose = BenchmarkPurpose.BENCH
    parameters: int | None = None
    whole: bool | None = None
    secrets_sha256: str | None = None
    gpu_utilization: float | None = None
    memory_usage_gb: float | None = None
    multi_gpu_scaling_efficiency: float | None = None
    files_opened: tuple[str, ...] | None = None
    schema: str = BENCHMARK_SCHEMA


@record
class AcceptedBaseline:
    """A baseline that somebody moved on purpose: from now on `record` is what is compared with.

    `accepted_by` is who, `time` when (as in a record), `reason` why. Later ones of the same
    benchmark, fingerprint (its key) and branch replace earlier ones, which are kept.
    """

    id: str
    record: str
    benchmark: str
    fingerprint: str
    branch: str | None
    commit: str | None
    accepted_by: str
    time: str
    reason: str
    schema: str = BASELINE_SCHEMA


@record
class BenchmarkExport:
    """Several records or accepted baselines as one document, oldest first."""

    records: tuple[BenchmarkRecord, ...]
    baselines: tuple[AcceptedBaseline, ...]
    schema: str = EXPORT_SCHEMA


def utc_text(moment: datetime) -> str:
    """A moment as records hold it: "2026-11-22T02:31:02.123456+00:00"."""
    return moment.astimezone(timezone.utc).isoformat(timespec="microseconds")


def utc_moment(text: str) -> datetime:
    """The moment of a record's `time`; `ValueError` for what is none, or has no offset from UTC."""
    moment = datetime.fromisoformat(re.sub(r"[Zz]$", "+00:00", text))
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} does not say its offset from UTC")
    try:
        return moment.astimezone(timezone.utc)
    except OverflowError:
        raise ValueError(f"{text!r} is beyond what a calendar holds") from None


def new_id(moment: datetime) -> str:
    """An id that no other record has; ids sort by time as far as the second."""
    return f"{moment.astimezone(timezone.utc):%Y%m%d-%H%M%S}-{os.urandom(6).hex()}"


def check_kept(document: BenchmarkRecord | AcceptedBaseline) -> None:
    """`RecordError` for what the types cannot say: ids, times and schemas that are none."""
    kinds = {BenchmarkRecord: BENCHMARK_SCHEMA, AcceptedBaseline: BASELINE_SCHEMA}
    ids = {"id": document.id}
    if isinstance(document, AcceptedBaseline):
        ids["record"] = document.record
    for name, value in ids.items():
        if not ID.fullmatch(value):
            raise RecordError(f"$.{name}: {value!r} is no id")
    try:
        utc_moment(document.time)
    except ValueError as error:
        raise RecordError(f"$.time: {error}") from None
    if not 0 < len(document.benchmark) <= MOST_LETTERS:
        raise RecordError(f"$.benchmark: a name has 1 to {MOST_LETTERS} letters")
    for name in ("peak_memory_bytes", "device_count"):
        if abs(getattr(document, name, None) or 0) > MOST:
            raise RecordError(f"$.{name}: no such number of bytes or devices")
    if document.schema != kinds[type(document)]:
        raise RecordError(f"$.schema: expected {kinds[type(document)]!r}")
