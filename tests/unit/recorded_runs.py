"""Hand-built event files: what a process would have written, through the record classes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpurun.records.codec import to_json
from gpurun.records.events import (
    EndEvent,
    EpochEvent,
    LoaderEvent,
    ProcessEvent,
    RootEvent,
    StepsEvent,
)

MS = 1_000_000
START_NS = 5_000 * MS
"""Clock reading at the start of every recorded process."""
UNIX_NS = 1_700_000_000_000 * MS
"""Wall-clock time at the start of every recorded process."""


def write_events(
    run_dir: Path,
    events: Sequence[Any],
    pid: int = 100,
    rank: int | None = None,
    start_ms: float = 0,
) -> Path:
    """One process's event file; `start_ms` is when it started, after the others."""
    process = ProcessEvent(
        pid=pid,
        rank=rank,
        local_rank=rank,
        world_size=None if rank is None else 2,
        argv=("train.py", "--epochs", "3"),
        python="3.12.1",
        unix_time_ns=UNIX_NS + int(start_ms * MS),
        clock_ns=START_NS,
    )
    path = run_dir / f"events-{pid}.jsonl"
    lines = [json.dumps({"event": e.kind, **to_json(e)}) for e in (process, *events)]
    path.write_text("\n".join(lines) + "\n")
    return path


def row(
    end_ms: float,
    source: int = 0,
    data_ms: float = 1,
    samples: dict[int, tuple[int, int]] | None = None,
    microbatches: int = 1,
    loss: float | None = None,
    device_ms: float | None = None,
    input_samples: int = 8,
    tokens: int = 0,
    copy_ms: float | None = None,
) -> tuple[Any, ...]:
    """One step row. `samples`: loader number to (indices, batches); 8 of loader 0 by default."""
    handed_out = {0: (8, 1)} if samples is None else samples
    return (
        source,
        START_NS + int(end_ms * MS),
        int(data_ms * MS),
        2 * MS,
        3 * MS,
        1 * MS,
        microbatches,
        input_samples,
        tokens,
        {str(k): list(v) for k, v in handed_out.items()},
        loss,
        None if device_ms is None else int(device_ms * MS),
        None if copy_ms is None else int(copy_ms * MS),
    )


def steps(rows: Sequence[tuple[Any, ...]], clock: str = "optimizer") -> StepsEvent:
    return StepsEvent(clock=clock, rows=tuple(rows))


def steady(count: int, step_ms: float = 10, **figures: Any) -> StepsEvent:
    """Steps of equal length, the first after 1 s."""
    return steps([row(1000 + i * step_ms, **figures) for i in range(count)])


def loader(number: int = 0, workers: int = 0, prefetch_factor: int | None = None) -> LoaderEvent:
    return LoaderEvent(
        loader=number,
        key=f"train.py:{10 + number}#0",
        class_name="DataLoader",
        subclass=False,
        dataset_class="Images",
        dataset_length=800,
        length=100,
        batch_size=8,
        workers=workers,
        prefetch_factor=prefetch_factor,
        persistent_workers=False,
        pin_memory=False,
        drop_last=False,
        iterable=False,
        custom_batch_sampler=False,
        start_method=None,
        batch_size_argument=None,
    )


def root(device: str = "cpu", name: str | None = None, memory: int | None = None) -> RootEvent:
    return RootEvent(
        root=0,
        class_name="Net",
        parameters=10,
        parameter_bytes=40,
        dtypes=("float32",),
        device=device,
        module_types={"Linear": 1},
        input_shape=(8, 3),
        input_dtype="float32",
        compiled=False,
        device_name=name,
        device_memory_bytes=memory,
    )


def epoch(number: int, phase: str, at_ms: float, batches: int = 0, trained: int = 0) -> EpochEvent:
    over = phase == "end"
    return EpochEvent(
        loader=number,
        phase=phase,
        clock_ns=START_NS + int(at_ms * MS),
        batches=batches if over else None,
        training_batches=trained if over else None,
    )


def end(
    rss: int | None = 1000, allocated: int | None = None, saves: tuple[int, float] | None = None
) -> EndEvent:
    return EndEvent(
        clock_ns=START_NS + 9000 * MS,
        peak_rss_bytes=rss,
        peak_allocated_bytes=allocated,
        peak_reserved_bytes=None if allocated is None else 2 * allocated,
        allocator_retries=None if allocated is None else 0,
        cpu_seconds=1.0,
        saves=None if saves is None else saves[0],
        save_seconds=None if saves is None else saves[1],
    )
