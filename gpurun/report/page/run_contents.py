"""All that a run folder holds for a page; what cannot be read is named, never raised."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from gpurun.errors import GpurunError
from gpurun.measure.measured_window import measured_window
from gpurun.measure.resource_use import SAMPLES_FILE
from gpurun.measure.run_events import ProcessLog, decode_lenient
from gpurun.measure.run_summary import RunRecords, read_records
from gpurun.measure.training_clock import PlannedWork, RecordedClock, planned_work, step_clock
from gpurun.records.bench.comparison import COMPARISON_SCHEMA, Comparison
from gpurun.records.bench.history import HISTORY_SCHEMA, History
from gpurun.records.codec import RecordError
from gpurun.records.diagnosis import DiagnosisReport
from gpurun.records.events import CLOCKS
from gpurun.records.result import ENDED_WELL, RESULT_SCHEMA, RunResult
from gpurun.records.scaling import SCALING_SCHEMA, ScalingReport
from gpurun.records.tuning import (
    PAIR_SIDES,
    TUNING_SCHEMA,
    Candidate,
    TrialPurpose,
    TrialRecord,
    TuningReport,
)
from gpurun.report.page.recorded_series import Gauge, LossSeries, gauges_of, loss_curve
from gpurun.rundir import read_json
from gpurun.timeline.limits import limited

T = TypeVar("T")

Examine = Callable[[Path, RunRecords], DiagnosisReport]
"""Diagnoses a run folder with its records; `GpurunError` where it cannot."""


@dataclass(frozen=True)
class Recording:
    """One measured launch: "before" or "after" of a tuning, or the run itself ("")."""

    label: str
    result: RunResult | None = None
    loss: LossSeries | None = None
    gauges: tuple[Gauge, ...] = ()
    work: PlannedWork | None = None
    folder: str = ""
    """The folder of the trial, for a tuning."""


Named = tuple[str, Recording]
"""A launch with the name under which the page shows it."""


@dataclass(frozen=True)
class RunContents:
    """A run; None and () stand for what it does not have. `missing`: a line for each fault."""

    name: str
    command: tuple[str, ...] = ()
    tuning: TuningReport | None = None
    scaling: ScalingReport | None = None
    comparison: Comparison | None = None
    history: History | None = None
    diagnosis: DiagnosisReport | None = None
    recordings: tuple[Recording, ...] = ()
    trials: tuple[TrialRecord, ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def script(self) -> str | None:
        """The name of its script's file, or of its module; None where that is not known."""
        words = self.command[1:] if self.command[:1] == ("-m",) else self.command
        return Path(words[0]).name if words else None


def names_of(runs: Sequence[RunContents]) -> list[str]:
    """What tells runs apart: their scripts if these all differ, else the runs' own names."""
    scripts = [run.script for run in runs if run.script]
    return scripts if len({*scripts}) == len(runs) else [run.name for run in runs]


@dataclass
class _Reader:
    """Reads documents and collects what is missing."""

    missing: list[str] = field(default_factory=list)

    def document(self, path: Path, cls: type[T]) -> T | None:
        """A document of a run folder; None if it is not there or cannot be read."""
        return self.decoded(self.plain(path), cls, path.name) if path.exists() else None

    def plain(self, path: Path) -> Any:
        """Its JSON value; None if it has none."""
        try:
            return read_json(path)
        except (OSError, ValueError) as error:
            self.missing.append(f"{path.name} cannot be read: {error}")
            return None

    def decoded(self, document: Any, cls: type[T], name: str) -> T | None:
        """The record in a JSON value; None if another version of gpurun wrote it otherwise."""
        if document is None:
            return None
        try:
            return decode_lenient(cls, document)
        except (RecordError, AttributeError, TypeError) as error:
            self.missing.append(f"{name} has another shape than this gpurun reads: {error}")
            return None


def read_contents(path: Path, examine: Examine) -> RunContents:
    """The contents of a run folder, or of one document that `--json` wrote.

    `GpurunError` if it is neither, or if it takes too much to read.
    """
    with limited([path]):
        contents = _of_document(path) if path.is_file() else _of_folder(path, examine)
    documents = (contents.tuning, contents.scaling, contents.comparison, contents.history)
    if any((*documents, contents.recordings, contents.trials)):
        return contents
    if path.is_dir() and contents.missing:
        return contents
    why = f": {contents.missing[0]}" if contents.missing else ""
    raise GpurunError(f"{path} holds no record of a run{why}", "name a folder below .gpurun/runs")


DOCUMENTS: dict[str, tuple[str, type[Any]]] = {
    TUNING_SCHEMA: ("tuning", TuningReport),
    SCALING_SCHEMA: ("scaling", ScalingReport),
    COMPARISON_SCHEMA: ("comparison", Comparison),
    HISTORY_SCHEMA: ("history", History),
}
"""By schema, the field of `RunContents` that a document of `--json` fills, and its record."""


def _of_document(path: Path) -> RunContents:
    reader = _Reader()
    document = reader.plain(path)
    schema = document.get("schema") if isinstance(document, dict) else None
    contents = RunContents(path.stem)
    if isinstance(schema, str) and schema in DOCUMENTS:
        name, cls = DOCUMENTS[schema]
        read: dict[str, Any] = {name: reader.decoded(document, cls, path.name)}
        contents = replace(contents, **read)
    elif schema == RESULT_SCHEMA:
        result = reader.decoded(document, RunResult, path.name)
        recordings = () if result is None else (Recording("", result),)
        contents = replace(contents, recordings=recordings)
    return _finished(contents, reader)


def _of_folder(folder: Path, examine: Examine) -> RunContents:
    reader = _Reader()
    tuning = reader.document(folder / "tuning.json", TuningReport)
    recordings = _tuned(folder, tuning, reader) if tuning is not None else []
    diagnosis = None
    if any(folder.glob("events-*.jsonl")) or (folder / "result.json").exists():
        records = read_records(folder)
        diagnosis = _diagnosis(folder, records, examine, reader)
        recordings.append(_recording(folder, "", reader, records, diagnosis))
    contents = RunContents(
        folder.resolve().name,
        tuning=tuning,
        scaling=reader.document(folder / "scaling.json", ScalingReport),
        diagnosis=diagnosis,
        recordings=tuple(recordings),
        trials=_trials(folder, tuning, reader),
    )
    return _finished(contents, reader)


def _finished(contents: RunContents, reader: _Reader) -> RunContents:
    documents = (contents.tuning, contents.scaling, contents.comparison)
    commands = [document.command for document in documents if document is not None]
    commands += [r.result.command for r in contents.recordings if r.result is not None]
    command = next((command for command in commands if command), ())
    return replace(contents, command=command, missing=tuple(dict.fromkeys(reader.missing)))


def _diagnosis(
    folder: Path, records: RunRecords, examine: Examine, reader: _Reader
) -> DiagnosisReport | None:
    try:
        found = examine(folder, records)
    except GpurunError as error:
        reader.missing.append(f"no diagnosis: {error.what}")
        return None
    reader.missing += found.failed_sources
    return found


def _trials(folder: Path, tuning: TuningReport | None, reader: _Reader) -> tuple[TrialRecord, ...]:
    """The trials of a tuning, also of one that did not come to its end."""
    if tuning is not None:
        return tuning.trials
    paths = sorted(folder.glob("trials/*/trial.json"))
    if paths:
        reader.missing.append("tuning.json: the tuning did not come to its end")
    found = [reader.document(path, TrialRecord) for path in paths]
    return tuple(trial for trial in found if trial is not None)


def _tuned(folder: Path, tuning: TuningReport, reader: _Reader) -> list[Recording]:
    """Trials of the script as it is, and with the settings chosen."""
    sides = [("before", tuning.baseline), ("after", tuning.chosen)]
    if tuning.baseline is not None and tuning.chosen is not None:
        if tuning.baseline.knobs == tuning.chosen.knobs:
            sides = sides[:1]
    found = []
    for label, side in sides:
        trial = None if side is None else _trial_of(folder, tuning, side)
        if side is None or trial is None:
            continue
        if not (folder / trial.run_dir).is_dir():
            reader.missing.append(f"{trial.run_dir}: the folder of a trial is gone")
            continue
        launch = folder / trial.run_dir
        recording = _recording(launch, label, reader, read_records(launch))
        if trial.took_turns(_live(tuning)):
            told = f"{label}: {trial.run_dir} took turns with another launch"
            reader.missing.append(f"{told}; its figures of devices are left out")
            recording = _without_devices(recording)
        source = _activity_source(folder, tuning, side)
        found.append(replace(_with_means(recording, side, source), folder=trial.run_dir))
    return found


def _trial_of(folder: Path, tuning: TuningReport, side: Candidate) -> TrialRecord | None:
    """The last trial of a side whose energy was measured, else the last one.

    Trials that ran alone come first; the others shared their device in turns.
    """
    trials = [t for t in tuning.trials if t.status in ENDED_WELL and _inside(folder, t.run_dir)]
    of_side = [t for t in trials if t.knobs == side.knobs]
    searched = [t for t in trials if t.purpose in (TrialPurpose.PROBE, TrialPurpose.SCREEN)]
    plain = [t for t in searched if t.knobs == side.knobs]
    plain = plain or [t for t in searched if _did_the_same(folder, t, side.knobs)]
    found = [*plain, *(t for t in of_side if t.purpose in PAIR_SIDES)]
    alone = [t for t in found if not t.took_turns(_live(tuning))]
    candidates = list(reversed(alone or found))
    told = (t for t in candidates if _energy_was_measured(_result(folder, t)))
    return next(told, candidates[0] if candidates else None)


def _live(tuning: TuningReport) -> bool:
    """True if the pairs of an older document took turns, or may have."""
    return tuning.proof is None or tuning.proof.live


def _did_the_same(folder: Path, trial: TrialRecord, knobs: Mapping[str, Any]) -> bool:
    """True if a trial had these settings, and others that were skipped in it."""
    if not knobs or any(trial.knobs.get(knob) != value for knob, value in knobs.items()):
        return False
    result = _result(folder, trial)
    skipped = {o.knob for o in result.knobs if o.outcome == "skipped"} if result else set()
    return trial.knobs.keys() - knobs.keys() <= skipped


def _energy_was_measured(result: RunResult | None) -> bool:
    return result is not None and result.joules_per_sample is not None


def _without_devices(recording: Recording) -> Recording:
    if recording.result is None:
        return replace(recording, gauges=())
    result = replace(recording.result, devices=(), energy_joules=None, joules_per_sample=None)
    return replace(recording, result=result, gauges=())


def _inside(folder: Path, inner: str) -> bool:
    return (folder / inner).resolve().is_relative_to(folder.resolve())


def _activity_source(folder: Path, tuning: TuningReport, side: Candidate) -> str | None:
    """What told the GPU activity of a side's launches; None where these differ."""
    launched = [t for t in tuning.trials if t.knobs == side.knobs and _inside(folder, t.run_dir)]
    results = [_result(folder, trial) for trial in launched]
    sources = {r.gpu_utilization_source for r in results if r is not None} - {None}
    return sources.pop() if len(sources) == 1 else None


def _result(folder: Path, trial: TrialRecord) -> RunResult | None:
    return _Reader().document(folder / trial.run_dir / "result.json", RunResult)


def _with_means(recording: Recording, side: Candidate, source: str | None) -> Recording:
    """The figures of a side are means over its launches, as the verdict has them."""
    if recording.result is None:
        return recording
    result = replace(
        recording.result,
        samples_per_second=side.samples_per_second,
        step_time_ms=side.step_time_ms,
        peak_memory_bytes=side.peak_memory_bytes,
        gpu_utilization_percent=side.gpu_utilization_percent,
        gpu_utilization_source=source,
    )
    return replace(recording, result=result)


def _recording(
    folder: Path,
    label: str,
    reader: _Reader,
    records: RunRecords,
    diagnosis: DiagnosisReport | None = None,
) -> Recording:
    """What one launch recorded; a launch that was killed has events and no result."""
    result = reader.document(folder / "result.json", RunResult)
    if not (folder / "result.json").exists():
        reader.missing.append(f"{_named('result.json', folder, label)}: the run was cut off")
    if result is None and diagnosis is not None:
        result = diagnosis.result
    if not (folder / SAMPLES_FILE).exists():
        reader.missing.append(f"{_named(SAMPLES_FILE, folder, label)}: no series over time")
    notes = records.notes
    reader.missing += [f"of {_named('the events', folder, label)}: {note}" for note in notes]
    main = _main_process(records.run.processes)
    window = None if main is None else measured_window(main[0])
    ranks = 1 if result is None else result.ranks
    return Recording(
        label,
        result,
        loss=None if main is None else loss_curve(main[1]),
        gauges=gauges_of(records.samples, None if window is None else window.bounds_ns),
        work=None if main is None else planned_work(*main, ranks),
    )


def _named(what: str, folder: Path, label: str) -> str:
    return f"{what} of trial {folder.name}" if label else what


def _main_process(processes: tuple[ProcessLog, ...]) -> tuple[ProcessLog, RecordedClock] | None:
    """The first rank of those that train by the best clock."""
    clocked = [(log, clock) for log in processes if (clock := step_clock(log)) is not None]
    best = min((CLOCKS.index(clock.kind) for _, clock in clocked), default=0)
    training = [(log, clock) for log, clock in clocked if CLOCKS.index(clock.kind) == best]
    return min(training, key=lambda x: (x[0].process.rank or 0, -len(x[1].steps)), default=None)
