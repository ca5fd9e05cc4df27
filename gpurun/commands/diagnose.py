"""`gpurun diagnose`: what keeps a training from being faster, from its record or a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from gpurun.arguments.flag_table import flags_of
from gpurun.arguments.gpurun_toml import load_config
from gpurun.arguments.subcommand_flags import DiagnoseOptions, parse_diagnose
from gpurun.commands.verdict_line import print_verdict
from gpurun.commands.written_outputs import check_outputs, emit_json, emit_text
from gpurun.diagnoses.diagnosis_report import diagnosis_report
from gpurun.diagnoses.evidence import Evidence
from gpurun.diagnoses.run_evidence import RESULT_FILE, evidence_of_run, evidence_of_timelines
from gpurun.diagnoses.thresholds import Thresholds
from gpurun.errors import ExitCode, GpurunError
from gpurun.measure.run_summary import RunRecords, read_records
from gpurun.profilers.recorded_profiles import (
    RecordedProfile,
    recorded_profiles,
    was_to_be_profiled,
)
from gpurun.records.codec import to_json
from gpurun.records.diagnosis import DiagnosisReport
from gpurun.records.finding import CRITICAL, WARNING
from gpurun.replay.replay_check import StepTimes
from gpurun.rundir import existing_home, lost_events, named_run
from gpurun.timeline.limits import limited
from gpurun.timeline.recordings import KINDS, read_recordings

HELP = """\
usage: gpurun diagnose [flags] FOLDER | RECORDING...     why is it not faster?
       gpurun diagnose [flags] BEFORE AFTER              what made its step slower, or faster?

FOLDER is the folder of a run below .gpurun/runs, or its name: of a plain run, of
`gpurun profile`, of --optimize (its launch with the settings that were kept) or of --scale
(its last launch of the largest count). A RECORDING may come from another tool: a trace of
torch.profiler (.json, .json.gz), a report of Nsight Systems (.nsys-rep, or its .sqlite export)
or of Nsight Compute (.ncu-rep, or its raw or details page as .csv).
Several recordings must be of one training: one for each rank, or timeline and kernels.

BEFORE and AFTER are two such folders or recordings, which are compared: the kernels, copies, calls
and causes that were added, lost or became slower, each with what it explains of the difference in
step time. Two recordings that name different ranks are of one training.

{flags}

Thresholds are set in [diagnose] of gpurun.toml. The exit code is 0, with or without findings.
"""
FLAGS = flags_of(DiagnoseOptions)


def diagnose(argv: list[str]) -> int:
    """Read, diagnose, report; exit code 0 whatever is found."""
    options = parse_diagnose(argv)
    check_outputs(json=options.json, markdown=options.markdown)
    home = existing_home(Path.cwd(), load_config(Path.cwd()).out)
    paths = [named_run(home, path) or Path(path) for path in options.paths]
    if len(paths) == 2:
        from gpurun.commands.compare_profiles import compare_and_report

        if compare_and_report(paths[0], paths[1], options):
            return int(ExitCode.OK)
    report = examine(paths)
    write_report(report, options, needed=True)
    print_verdict(
        "ok",
        int(ExitCode.OK),
        critical=sum(f.severity > CRITICAL for f in report.findings),
        warnings=sum(WARNING <= f.severity <= CRITICAL for f in report.findings),
    )
    return int(ExitCode.OK)


def examine(paths: list[Path]) -> DiagnosisReport:
    """The diagnosis of a run folder, or of recordings; `GpurunError` where there is none, or if it
    takes too much to read.
    """
    with limited(paths):
        return _examined(paths)


def _examined(paths: list[Path]) -> DiagnosisReport:
    thresholds = Thresholds(load_config(Path.cwd()).diagnose)
    missing = next((path for path in paths if not path.exists()), None)
    if missing is not None:
        raise GpurunError(f"there is no {missing}", f"name {KINDS}")
    folder = next((path for path in paths if path.is_dir()), None)
    if folder is None:
        subject = ", ".join(path.name for path in paths)
        timelines = read_recordings(paths)
        evidence = evidence_of_timelines(timelines, thresholds)
        return diagnosis_report(evidence, subject, timelines=timelines)
    if len(paths) > 1:
        raise GpurunError(f"{folder} is a folder beside other paths", "name one folder alone")
    launch, notes = launch_of(folder)
    report = diagnose_run(launch, read_records(launch))
    return replace(report, notes=(*notes, *report.notes))


def launch_of(folder: Path) -> tuple[Path, tuple[str, ...]]:
    """The launch that a run folder stands for, and notes that say which, if there are several."""
    if any(folder.glob("events-*.jsonl")) or (folder / RESULT_FILE).exists():
        return folder, ()
    from gpurun.commands.launch_within import launch_within

    return launch_within(folder, diagnose_run)


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
    return replace(evidence, profiling_share=slower / (1 + slower)), profiles


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


def write_report(
    report: DiagnosisReport, options: DiagnoseOptions, *, needed: bool = False
) -> None:
    """To the screen and to the files that were asked for; `needed` as in `emit_json`."""
    from gpurun.report.findings_text import print_diagnosis
    from gpurun.report.page.findings_section import diagnosis_page
    from gpurun.report.page.markdown_page import markdown_page

    if not options.quiet:
        print_diagnosis(report, options.all)
    emit_json(options.json, to_json(report), needed=needed)
    if options.markdown is not None:
        page = diagnosis_page(report, options.all)
        emit_text(options.markdown, markdown_page(page), "--markdown", needed=True)
