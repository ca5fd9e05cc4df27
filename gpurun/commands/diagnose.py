"""`gpurun diagnose`: what keeps a training from being faster; what changed between two profiles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpurun.arguments.flag_table import flags_of
from gpurun.arguments.gpurun_toml import load_config
from gpurun.arguments.subcommand_flags import DiagnoseOptions, parse_diagnose
from gpurun.commands.diagnosed_launch import diagnose_run, evidence_of_launch, launch_of, step_times
from gpurun.commands.report_command import find_runs
from gpurun.commands.written_outputs import check_outputs, emit_json, emit_text, print_verdict
from gpurun.diagnoses.diagnosis_report import diagnose as findings_of
from gpurun.diagnoses.diagnosis_report import diagnosis_report, with_replay
from gpurun.diagnoses.evidence import Evidence
from gpurun.diagnoses.run_evidence import evidence_of_timelines
from gpurun.diagnoses.thresholds import Thresholds
from gpurun.errors import ExitCode, GpurunError
from gpurun.measure.run_summary import read_records
from gpurun.records.codec import to_json
from gpurun.records.diagnosis import DiagnosisReport, ProfileComparison
from gpurun.records.finding import CRITICAL, WARNING
from gpurun.replay.compared_profiles import compared_profiles
from gpurun.replay.replay_check import StepTimes
from gpurun.replay.spent_time import ProfiledSide
from gpurun.report.page.markdown_page import markdown_page
from gpurun.report.page.page_blocks import Section
from gpurun.report.page.profile_comparison_page import comparison_page, comparison_section
from gpurun.report.page.terminal_page import print_page
from gpurun.rundir import existing_home, named_run
from gpurun.timeline.limits import limited
from gpurun.timeline.model import Timeline
from gpurun.timeline.recordings import KINDS, is_counters, read_recordings

HELP = """\
usage: gpurun diagnose [flags] [RUN | RECORDING...]      why is it not faster?
       gpurun diagnose [flags] BEFORE AFTER              what made its step slower, or faster?

RUN is the folder of a run below .gpurun/runs, or its name: of a plain run, of `gpurun profile`, of
--optimize (its launch with the settings that were kept) or of --scale (its last launch of the
largest count). Without one it is the newest run. A RECORDING may come from another tool: a trace of
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
    paths = [named_run(home, path) or Path(path) for path in options.paths] or find_runs((), home)
    if len(paths) == 2:
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


def write_report(
    report: DiagnosisReport, options: DiagnoseOptions, *, needed: bool = False
) -> None:
    """To the screen and to the files that were asked for; `needed` as in `emit_json`."""
    from gpurun.report.findings_text import TOP, print_diagnosis
    from gpurun.report.page.findings_section import diagnosis_page
    from gpurun.report.page.markdown_page import markdown_page
    from gpurun.report.page.profile_sections import profile_sections
    from gpurun.report.page.terminal_page import print_sections

    if not options.quiet:
        print_diagnosis(report, options.all)
        print_sections(profile_sections(report, None if options.all else TOP))
    emit_json(options.json, to_json(report), needed=needed)
    if options.markdown is not None:
        page = diagnosis_page(report, options.all)
        emit_text(options.markdown, markdown_page(page), "--markdown", needed=True)


TODO = "compare two profiles of one training: gpurun profile SCRIPT writes one into its run folder"


def changed_section(before: Path, after: Path) -> Section:
    """What changed between two run folders or recordings, as a part of a report or a comment.

    For `bench`: one profiled launch of each side of a regression. `GpurunError` as `compared`.
    """
    return comparison_section(compared(before, after))


def compared(before: Path, after: Path) -> ProfileComparison:
    """Two run folders or recordings compared. `GpurunError` where they cannot be."""
    return _compared(*_sides(before, after))


def compare_and_report(before: Path, after: Path, options: DiagnoseOptions) -> bool:
    """Compare, and write to the screen and to the files that were asked for.

    False where these are parts of one training: counters of Nsight Compute join a timeline, and
    recordings that name different ranks are of one job.
    """
    if is_counters(before) or is_counters(after):
        return False
    sides = _sides(before, after)
    ranks = [None if side.timeline is None else side.timeline.rank for side in sides]
    recordings = not before.is_dir() and not after.is_dir()
    if recordings and None not in ranks and ranks[0] != ranks[1]:
        return False
    found = _compared(*sides)
    page = comparison_page(found, options.all)
    if not options.quiet:
        print_page(page)
    emit_json(options.json, to_json(found), needed=True)
    if options.markdown is not None:
        emit_text(options.markdown, markdown_page(page), "--markdown", needed=True)
    print_verdict(
        "ok",
        int(ExitCode.OK),
        difference_ms=found.difference_ms,
        explained_ms=found.explained_ms,
        basis=found.basis.value,
    )
    return True


def _compared(before: ProfiledSide, after: ProfiledSide) -> ProfileComparison:
    _refuse_other_steps(before, after)
    found = compared_profiles(before, after)
    if found is None:
        raise GpurunError(_why_not(before, after), TODO)
    return found


def _refuse_other_steps(before: ProfiledSide, after: ProfiledSide) -> None:
    """A step of an optimizer and a forward pass are different things."""
    clocks = [None if side.result is None else side.result.clock for side in (before, after)]
    if None not in clocks and clocks[0] != clocks[1]:
        what = (
            f"the steps differ: {before.subject} counts by {clocks[0]}, {after.subject} by "
            f"{clocks[1]}"
        )
        raise GpurunError(what, TODO)


def _why_not(before: ProfiledSide, after: ProfiledSide) -> str:
    """Which side lacks what."""
    for side in (before, after):
        split = None if side.result is None else side.result.split
        if side.timeline is None and split is None:
            return f"{side.subject} holds neither a profile nor a measured step"
        if split is None and side.step_ms is None:
            return f"{side.subject} marks no steps, so nothing in it is a step's"
        if split is None and side.timeline is not None:
            if not side.timeline.kernels and not side.timeline.operators:
                return f"{side.subject} is empty: it holds neither kernels nor operators"
    return f"{before.subject} and {after.subject} measured nothing in common"


def _sides(before: Path, after: Path) -> tuple[ProfiledSide, ProfiledSide]:
    with limited([before, after]):
        return _side(before), _side(after)


def _side(path: Path) -> ProfiledSide:
    if not path.exists():
        raise GpurunError(f"there is no {path}", f"name {KINDS}")
    return _of_folder(path) if path.is_dir() else _of_recording(path)


def _of_recording(path: Path) -> ProfiledSide:
    thresholds = Thresholds(load_config(Path.cwd()).diagnose)
    evidence = evidence_of_timelines(read_recordings([path]), thresholds)
    return _profiled(path.name, evidence)


def _of_folder(folder: Path) -> ProfiledSide:
    launch, notes = launch_of(folder)
    records = read_records(launch)
    evidence, profiles = evidence_of_launch(launch, records)
    found = _profiled(str(launch), evidence, step_times(profiles, evidence.rank))
    failures = [failure for profile in profiles for failure in profile.failures]
    return replace(found, notes=(*notes, *found.notes, *failures, *records.notes))


def _profiled(subject: str, evidence: Evidence, times: StepTimes | None = None) -> ProfiledSide:
    timeline: Timeline | None = evidence.timeline
    evidence, replayed = with_replay(evidence, times)
    return ProfiledSide(
        subject=subject,
        timeline=timeline,
        figures=evidence.figures,
        times=times,
        workers=bool(evidence.workers),
        replayed=replayed,
        result=evidence.result,
        findings=findings_of(evidence),
        notes=() if timeline is None else timeline.notes,
    )
