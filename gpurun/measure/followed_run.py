"""A run folder that is still being written: each reading takes in only the new lines."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gpurun.measure.resource_use import SAMPLES_FILE, utilization_source
from gpurun.measure.run_events import ProcessLog, decode_lenient
from gpurun.measure.step_table import UNKNOWN, StepTable
from gpurun.measure.training_clock import RecordedClock, step_clock, sum_known
from gpurun.records.codec import RecordError
from gpurun.records.events import CLOCKS, LearningRateEvent, ProcessEvent, StepRow, StepsEvent
from gpurun.records.monitor import GpuState, MonitorReport, RankState, TrainingState
from gpurun.records.parse_json import open_regular, parse_line
from gpurun.records.samples import DeviceSample

WINDOW_NS = 5_000_000_000
"""Step time and throughput are means over so long."""
LEAST_ROWS = 8
"""Slow steps: the window has so many rows at least."""
MOST_ROWS = 2048
"""Rows that are kept of each clock. Steps of 1 ms fill two seconds with them, which hold a loss."""


class FollowedRun:
    """Reads a run folder again and again. No content of a file makes it raise."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._files: dict[Path, _GrowingFile] = {}
        self._processes: dict[Path, _Process] = {}
        self._devices: dict[str, DeviceSample] = {}

    def read(self) -> None:
        """Take in what was written since the last reading."""
        for path in sorted(self.run_dir.glob("events-*.jsonl")):
            process = self._processes.setdefault(path, _Process(path))
            for document in self._new_lines(path):
                process.take(document)
        for document in self._new_lines(self.run_dir / SAMPLES_FILE):
            sample = _decoded(DeviceSample, document)
            if sample is not None:
                self._devices[sample.uuid] = sample

    def training(self) -> TrainingState:
        """The progress of every process that has taken a step."""
        known = [process for process in self._processes.values() if process.event is not None]
        known.sort(key=lambda process: process.event.unix_time_ns if process.event else 0)
        argv = next((process.event.argv for process in known if process.event is not None), ())
        ranks: dict[tuple[int | None, int], RankState] = {}
        for process in known:
            state = process.state()
            if state is not None:  # a rank that was started again replaces the one before
                ranks[state.rank, state.pid if state.rank is None else 0] = state
        found = sorted(ranks.values(), key=lambda state: (state.rank or 0, state.pid))
        return TrainingState(self.run_dir.name, argv, tuple(found))

    def report(self) -> MonitorReport:
        """Read, then tell the progress and the latest sample of each GPU."""
        self.read()
        samples = enumerate(self._devices.values())
        gpus = tuple(gpu_state(sample, place) for place, sample in samples)
        return MonitorReport("ok", None, gpus, (self.training(),))

    def _new_lines(self, path: Path) -> Iterator[dict[str, Any]]:
        return self._files.setdefault(path, _GrowingFile(path)).new_documents()


class _GrowingFile:
    """A file of JSON lines that others append to; a line counts once it is whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_documents(self) -> Iterator[dict[str, Any]]:
        """One at a time: the log of a long run does not fit into memory."""
        try:
            with open_regular(self._path) as file:
                file.seek(self._offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        return
                    self._offset += len(line)
                    if (found := _document(line)) is not None:
                        yield found
        except OSError:
            return


class _Process:
    """The latest steps of one process, and how many there were."""

    def __init__(self, path: Path) -> None:
        self.event: ProcessEvent | None = None
        self._path = path
        self._forget()

    def _forget(self) -> None:
        self._counts: dict[str, Counter[int]] = {clock: Counter() for clock in CLOCKS}
        self._recent: dict[str, deque[list[Any]]] = {c: deque(maxlen=MOST_ROWS) for c in CLOCKS}
        self._samples: dict[str, int | None] = dict.fromkeys(CLOCKS, 0)
        self._rate: float | None = None

    def take(self, document: dict[str, Any]) -> None:
        """Take in one line; the first line of a process that replaced itself starts anew."""
        kind = document["event"]
        if kind == StepsEvent.kind and document.get("clock") in CLOCKS:
            self._rows(document["clock"], document.get("rows"))
        elif kind == LearningRateEvent.kind:
            event = _decoded(LearningRateEvent, document)
            if event is not None and event.rates:
                self._rate = event.rates[0]
        elif kind == ProcessEvent.kind:
            self.event = _decoded(ProcessEvent, document)
            self._forget()

    def _rows(self, clock: str, rows: Any) -> None:
        whole = [row for row in rows if _is_row(row)] if isinstance(rows, list) else []
        self._counts[clock].update(row[StepRow.SOURCE] for row in whole)
        self._recent[clock].extend(whole)
        before, more = self._samples[clock], self._samples_of(clock, whole)
        self._samples[clock] = None if before is None or more is None else before + more

    def _samples_of(self, clock: str, rows: Sequence[list[Any]]) -> int | None:
        """The samples of these rows; None where one does not know its own."""
        found = None
        if self.event is not None:
            log = ProcessLog(self._path, self.event, steps={clock: _table(rows)})
            found = step_clock(log)
        if found is None:
            return None if rows else 0
        return None if UNKNOWN in found.samples else sum(found.samples)

    def state(self) -> RankState | None:
        """The progress; None before the first step."""
        clock = next((c for c in CLOCKS if self._counts[c]), None)
        if clock is None or self.event is None:
            return None
        table = _window(self._recent[clock])
        found = step_clock(ProcessLog(self._path, self.event, steps={clock: table}))
        if found is None or not len(found.steps):
            return None
        step_seconds, rate = _pace(found)
        last_ns = found.steps[StepRow.END_NS][-1]
        return RankState(
            rank=self.event.rank,
            pid=self.event.pid,
            steps=max(self._counts[clock].values()),
            step_time_seconds=step_seconds,
            samples_per_second=rate,
            loss=found.steps.last_loss(),
            learning_rate=self._rate,
            last_step_unix_seconds=(last_ns - self.event.clock_ns + self.event.unix_time_ns) / 1e9,
            samples=self._samples[clock],
        )


def _is_row(row: Any) -> bool:
    """True if it counts as a step; its other columns are looked at when it is measured."""
    if not isinstance(row, list) or len(row) < StepRow.INPUT_CALLS:
        return False
    return all(type(row[column]) is int for column in (StepRow.SOURCE, StepRow.END_NS))


def _window(rows: Sequence[list[Any]]) -> StepTable:
    """The latest rows as a table."""
    since = rows[-1][StepRow.END_NS] - WINDOW_NS
    numbered = enumerate(rows, LEAST_ROWS - len(rows))
    return _table(row for place, row in numbered if place >= 0 or row[StepRow.END_NS] >= since)


def _table(rows: Iterable[list[Any]]) -> StepTable:
    table = StepTable()
    for row in rows:
        try:
            table.append(row)
        except ValueError:
            continue  # a damaged line
    return table


def _pace(clock: RecordedClock) -> tuple[float | None, float | None]:
    """Seconds a step and samples a second; None from fewer than two steps."""
    ends = clock.steps[StepRow.END_NS]
    steps, seconds = len(ends) - 1, (ends[-1] - ends[0]) / 1e9
    if seconds <= 0:
        return None, None
    samples = sum_known(clock.samples[1:])
    return seconds / steps, None if samples is None else samples / seconds


def gpu_state(sample: DeviceSample, place: int) -> GpuState:
    """A GPU by its sample. `place`: its number among the visible GPUs."""
    activity = sample.sm_activity_percent
    nvml = sample.utilization_percent
    return GpuState(
        gpu_id=place if sample.cuda_index is None else sample.cuda_index,
        uuid=sample.uuid,
        name=sample.name,
        gpu_utilization_percent=nvml if activity is None else activity,
        gpu_utilization_source=utilization_source(activity, nvml, sample.activity_source),
        memory_used_bytes=sample.memory_used_bytes,
        memory_total_bytes=sample.memory_total_bytes,
        temperature_celsius=sample.temperature_celsius,
        power_watts=sample.power_watts,
    )


def _document(line: bytes) -> dict[str, Any] | None:
    try:
        found = parse_line(line)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else None


def _decoded(cls: type[Any], document: dict[str, Any]) -> Any:
    if document["event"] != cls.kind:
        return None
    try:
        return decode_lenient(cls, document)
    except RecordError:
        return None
