"""`gpurun diagnose A B`: what changed between two profiles, and what it explains of the step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpurun.arguments.gpurun_toml import load_config
from gpurun.arguments.subcommand_flags import DiagnoseOptions
from gpurun.commands.diagnosed_launch import evidence_of_launch, launch_of, step_times
from gpurun.commands.verdict_line import print_verdict
from gpurun.commands.written_outputs import emit_json, emit_text
from gpurun.diagnoses.diagnosis_report import diagnose, with_replay
from gpurun.diagnoses.evidence import Evidence
from gpurun.diagnoses.run_evidence import evidence_of_timelines
from gpurun.diagnoses.thresholds import Thresholds
from gpurun.errors import ExitCode, GpurunError
from gpurun.measure.run_summary import read_records
from gpurun.records.codec import to_json
from gpurun.records.diagnosis import ProfileComparison
from gpurun.replay.compared_profiles import compared_profiles
from gpurun.replay.replay_check import StepTimes
from gpurun.replay.spent_time import ProfiledSide
from gpurun.report.page.markdown_page import markdown_page
from gpurun.report.page.page_blocks import Section
from gpurun.report.page.profile_comparison_page import comparison_page, comparison_section
from gpurun.report.page.terminal_page import print_page
from gpurun.timeline.limits import limited
from gpurun.timeline.model import Timeline
from gpurun.timeline.recordings import KINDS, is_counters, read_recordings

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
        findings=diagnose(evidence),
        notes=() if timeline is None else timeline.notes,
    )
