"""The diagnosis of one launch: of a run folder, or of the launch that stands for a tuning's folder.

A tuning and a scaling train in launches of their own, one of which is examined.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gpurun.arguments.gpurun_toml import load_config
from gpurun.diagnoses.diagnosis_report import diagnosis_report
from gpurun.diagnoses.evidence import Evidence
from gpurun.diagnoses.run_evidence import RESULT_FILE, evidence_of_run
from gpurun.diagnoses.thresholds import Thresholds
from gpurun.errors import GpurunError
from gpurun.formatting.knob_text import knobs_text
from gpurun.formatting.number_text import count
from gpurun.measure.run_summary import RunRecords
from gpurun.profilers.recorded_profiles import (
    RecordedProfile,
    recorded_profiles,
    was_to_be_profiled,
)
from gpurun.records.diagnosis import DiagnosisReport
from gpurun.records.scaling import ScalingReport
from gpurun.replay.replay_check import StepTimes
from gpurun.rundir import lost_events

EVENTS = "events-*.jsonl"


def launch_of(folder: Path) -> tuple[Path, tuple[str, ...]]:
    """The launch that a run folder stands for, and notes that say which, if there are several."""
    if any(folder.glob("events-*.jsonl")) or (folder / RESULT_FILE).exists():
        return folder, ()
    return _launch_within(folder)


def diagnose_run(folder: Path, records: RunRecords) -> DiagnosisReport:
    """The diagnosis of a run, with the recordings of each rank if it was profiled.

    `records`: those of the folder. `GpurunError` if no process recorded anything.
    """
    evidence, profiles = evidence_of_launch(folder, records)
    overheads = [p.overhead_percent for p in profiles if p.overhead_percent is not None]
    failures = dict.fromkeys(failure for profile in profiles for failure in profile.failures)
    return diagnosis_report(
        evidence,
        str(folder),
        overhead_percent=max(overheads, default=None),
        failed_sources=tuple(failures),
        notes=(*_window_notes(folder, profiles), *records.notes),
        timelines=[profile.timeline for profile in profiles],
        step_times=step_times(profiles, evidence.rank),
    )


def evidence_of_launch(
    folder: Path, records: RunRecords
) -> tuple[Evidence, tuple[RecordedProfile, ...]]:
    """The evidence of a run, and the recordings of each rank if it was profiled.

    `records`: those of the folder. `GpurunError` if no process recorded anything.
    """
    thresholds = Thresholds(load_config(Path.cwd()).diagnose)
    profiles = recorded_profiles(folder, records.run)
    timelines = [profile.timeline for profile in profiles]
    evidence = evidence_of_run(folder, thresholds, timelines, records)
    slower = max([0.0, *(profile.overhead_percent or 0.0 for profile in profiles)]) / 100
    plain = next((profile.plain for profile in profiles if profile.rank == evidence.rank), None)
    if plain is None or evidence.on_gpu:
        return replace(evidence, profiling_share=slower / (1 + slower)), profiles
    return replace(evidence, unprofiled=plain), profiles  # their parts are those without profilers


def step_times(profiles: Sequence[RecordedProfile], rank: int | None) -> StepTimes | None:
    """The median steps of a rank, inside and outside of its window."""
    return next((profile.pace for profile in profiles if profile.rank == rank), None)


def _window_notes(folder: Path, profiles: Sequence[RecordedProfile]) -> tuple[str, ...]:
    """The time that profiling took, or the reason why no step was profiled."""
    if profiles:
        seconds = max(profile.profiler_seconds for profile in profiles)
        took = (f"profilers took {seconds:.1f} s to start and stop",) if seconds >= 0.05 else ()
        return (*took, *_which_window(profiles[0]))
    if not was_to_be_profiled(folder) or lost_events(folder) is not None:
        return ()
    return ("no step was profiled: the script took too few steps before they were steady",)


def _which_window(profile: RecordedProfile) -> tuple[str, ...]:
    """Which window this is, if the training had several."""
    window = profile.log.profile
    if window is None or window.number == 1:
        return ()
    last = window.first_step + window.steps
    return (f"steps {window.first_step + 1:,} to {last:,}, the last of {window.number} windows",)


def _launch_within(folder: Path) -> tuple[Path, tuple[str, ...]]:
    """A launch inside, and notes that say which it is and name others.

    Of a tuning the one with the settings that were kept, of a scaling the last of the largest
    count, of one that did not come to its end the newest. `GpurunError` where there is none.
    """
    from gpurun.report.page.run_contents import RunContents, read_contents

    try:
        contents = read_contents(folder, diagnose_run)
    except GpurunError:
        contents = RunContents(folder.name)
    if contents.recordings:
        last = contents.recordings[-1]
        kept = contents.tuning.chosen if contents.tuning and last.label == "after" else None
        what = "the script as it is" if kept is None else f"kept: {knobs_text(kept.knobs)}"
        return folder / last.folder, (f"this is {last.folder} of the tuning, {what}",)
    counts = dict(_by_count(folder, contents.scaling)) if contents.scaling is not None else {}
    if counts:
        most = max(counts)
        told = {n: f"the scaling's last launch of {count(n, 'rank')}" for n in counts}
        others = (f"{told[n]}: {path}" for n, path in counts.items() if n != most)
        return counts[most], (f"this is {counts[most].name}, {told[most]}", *others)
    events = list(folder.glob(f"*/*/{EVENTS}"))
    if not events:
        raise GpurunError(f"{folder} holds no record of a run", "name a folder below .gpurun/runs")
    newest = max(events, key=lambda path: path.stat().st_mtime_ns).parent
    return newest, (f"this is {newest.relative_to(folder)}, the newest launch there",)


def _by_count(folder: Path, scaling: ScalingReport) -> Iterator[tuple[int, Path]]:
    """The last usable launch of each count of devices."""
    for point in scaling.points:
        usable = [each for each in point.launches if each.exchange and each.error is None]
        launch = folder / "launches" / Path(usable[-1].run_dir).name if usable else folder
        if any(launch.glob(EVENTS)):
            yield point.gpus, launch
