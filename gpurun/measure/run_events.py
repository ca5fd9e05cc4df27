"""Read the event files of a run folder into typed logs, one a process.

No content of a file makes this raise. A process may have been killed in the middle of a line, the
disk may have been full, and a newer gpurun may have written unknown fields. `notes` lists
everything that could not be read or written.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from gpurun.measure.step_table import StepTable
from gpurun.records import events as records
from gpurun.records.codec import RecordError, from_json
from gpurun.records.failure import ATTEMPTS_FILE, Attempt
from gpurun.records.parse_json import JsonLines
from gpurun.rundir import INCOMPLETE, lost_events

T = TypeVar("T")

EVENT_TYPES: dict[str, type[Any]] = {
    kind: cls
    for cls in vars(records).values()
    if isinstance(cls, type) and isinstance(kind := getattr(cls, "kind", None), str)
}
"""Record class of each kind of event line."""


@dataclass(frozen=True)
class ProcessLog:
    """Everything one process recorded. Tuples are in the order of writing.

    A field of type `tuple[Event, ...]` holds every event of its kind, one of type `Event | None`
    the latest: a new kind needs a field here and nothing else.
    """

    path: Path
    process: records.ProcessEvent
    torch: records.TorchEvent | None = None
    imports: records.ImportsEvent | None = None
    origins: tuple[records.OriginsEvent, ...] = ()
    files_opened: records.FilesOpenedEvent | None = None
    planted: tuple[records.PlantedEvent, ...] = ()
    arguments: tuple[records.ArgumentsEvent, ...] = ()
    loaders: tuple[records.LoaderEvent, ...] = ()
    optimizers: tuple[records.OptimizerEvent, ...] = ()
    roots: tuple[records.RootEvent, ...] = ()
    steps: dict[str, StepTable] = field(default_factory=dict)
    """Step rows by clock: "optimizer", "backward", "forward"."""
    flops: tuple[records.FlopsEvent, ...] = ()
    epochs: tuple[records.EpochEvent, ...] = ()
    knobs: tuple[records.KnobEvent, ...] = ()
    hooks: tuple[records.HookEvent, ...] = ()
    compiles: tuple[records.CompileEvent, ...] = ()
    traits: tuple[records.TraitEvent, ...] = ()
    audits: tuple[records.AuditEvent, ...] = ()
    samples: tuple[records.SamplesEvent, ...] = ()
    outputs: tuple[records.OutputsEvent, ...] = ()
    rates: records.RatesEvent | None = None
    waits: records.WaitsEvent | None = None
    stop: records.StopEvent | None = None
    turns: tuple[records.TurnEvent, ...] = ()
    profile: records.ProfileEvent | None = None
    host_samples: records.HostSamplesEvent | None = None
    memory_traces: tuple[records.MemoryTraceEvent, ...] = ()
    ceilings: records.CeilingsEvent | None = None
    worker_turns: tuple[records.WorkerTurnEvent, ...] = ()
    source_sites: tuple[records.SourceSiteEvent, ...] = ()
    cores: records.CoresEvent | None = None
    nonfinite: records.NonfiniteEvent | None = None
    out_of_memory: records.OutOfMemoryEvent | None = None
    exit_record: records.ExitRecordEvent | None = None
    end: records.EndEvent | None = None

    @property
    def on_gpu(self) -> bool:
        """True if it trains on a GPU. Where its model is never called, its optimizer tells."""
        devices = [*(root.device for root in self.roots), *(o.device for o in self.optimizers)]
        return any(device.startswith("cuda") for device in devices)

    def unix_time_ns(self, clock_ns: int) -> int:
        """The wall-clock time of a reading of this process's clock."""
        return clock_ns - self.process.clock_ns + self.process.unix_time_ns


@dataclass(frozen=True)
class RunLog:
    """The processes of a run in the order they started, and what could not be read."""

    processes: tuple[ProcessLog, ...]
    notes: tuple[str, ...]


def read_run(run_dir: Path) -> RunLog:
    """Read every `events-*.jsonl` of a run folder."""
    logs: list[ProcessLog] = []
    lost = lost_events(run_dir)
    notes = [] if lost is None else [f"{INCOMPLETE}: {lost}"]
    for path in sorted(run_dir.glob("events-*.jsonl")):
        reader = _EventReader(path, incomplete=lost is not None)
        reader.read()
        logs += reader.logs
        notes += reader.lines.notes()
    logs.sort(key=lambda log: log.process.unix_time_ns)
    return RunLog(tuple(logs), tuple(notes))


def decode_lenient(cls: type[T], document: dict[str, Any]) -> T:
    """Build a record from a line, ignoring fields that this version does not know."""
    names = _field_names(cls)  # type: ignore[arg-type]
    return from_json(cls, {k: v for k, v in document.items() if k in names})


@functools.cache
def _field_names(cls: type[Any]) -> frozenset[str]:
    return frozenset(f.name for f in dataclasses.fields(cls))


class _EventReader:
    """Reads one file. A process that replaced itself (exec) starts a second log in it."""

    def __init__(self, path: Path, incomplete: bool) -> None:
        self.path = path
        self.lines = JsonLines(path, torn_is_known=incomplete)
        self.logs: list[ProcessLog] = []
        self._process: records.ProcessEvent | None = None
        self._events: dict[str, list[Any]] = {}
        self._steps: dict[str, StepTable] = {}

    def read(self) -> None:
        for document in self.lines:
            kind = document.get("event")
            if kind == records.StepsEvent.kind:
                self._step_rows(document)
            elif isinstance(kind, str) and kind in EVENT_TYPES:
                self._record(kind, document)
            else:
                self.lines.problem(f"unknown event {kind!r}")
        self._close()

    def _record(self, kind: str, document: dict[str, Any]) -> None:
        try:
            record = decode_lenient(EVENT_TYPES[kind], document)
        except RecordError as error:
            self.lines.problem(f"a {kind} event is unreadable ({error})")
            return
        if isinstance(record, records.ProcessEvent):
            self._close()
            self._process = record
        else:
            self._events.setdefault(kind, []).append(record)

    def _step_rows(self, document: dict[str, Any]) -> None:
        rows = document.get("rows")
        table = self._steps.setdefault(str(document.get("clock")), StepTable())
        for row in rows if isinstance(rows, list) else ():
            try:
                table.append(row)
            except ValueError:
                self.lines.problem("a step row is unreadable")

    def _close(self) -> None:
        """Make a log of what was read since the last process line."""
        if self._process is None:
            if self._events or self._steps:
                self.lines.problem("no process line; its events are left out")
        else:
            self.logs.append(self._log(self._process))
        self._process, self._events, self._steps = None, {}, {}

    def _log(self, process: records.ProcessEvent) -> ProcessLog:
        found: dict[str, Any] = {}
        for name, kind, every in _event_fields():
            events = tuple(self._events.get(kind, ()))
            found[name] = events if every else (events or (None,))[-1]
        return ProcessLog(self.path, process, steps=self._steps, **found)


@functools.cache
def _event_fields() -> tuple[tuple[str, str, bool], ...]:
    """The fields of a log that hold events, by their types: the name, the kind of event, and
    whether the field holds every one of them or the latest."""
    hints = typing.get_type_hints(ProcessLog).items()
    parts = {name: typing.get_args(hint) for name, hint in hints}
    return tuple(
        (name, part[0].kind, Ellipsis in part)
        for name, part in parts.items()
        if part and part[0] in EVENT_TYPES.values()
    )


def read_attempts(run_dir: Path, notes: list[str] | None = None) -> tuple[Attempt, ...]:
    """In their order; none for a run without an agent. `notes` gains what could not be read."""
    path = run_dir / ATTEMPTS_FILE
    if not path.exists():
        return ()
    found = []
    lines = JsonLines(path)
    for document in lines:
        try:
            found.append(from_json(Attempt, document))
        except RecordError as error:
            lines.problem(f"an attempt is unreadable ({error})")
    if notes is not None:
        notes += lines.notes()
    return tuple(found)
