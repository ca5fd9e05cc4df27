"""`gpurun diagnose`: what keeps a training from being faster, from its record or a trace."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpurun.arguments.flag_table import flags_of
from gpurun.arguments.gpurun_toml import load_config
from gpurun.arguments.subcommand_flags import DiagnoseOptions, parse_diagnose
from gpurun.commands.compare_profiles import compare_and_report
from gpurun.commands.diagnosed_launch import diagnose_run, launch_of
from gpurun.commands.report_command import find_runs
from gpurun.commands.verdict_line import print_verdict
from gpurun.commands.written_outputs import check_outputs, emit_json, emit_text
from gpurun.diagnoses.diagnosis_report import diagnosis_report
from gpurun.diagnoses.run_evidence import evidence_of_timelines
from gpurun.diagnoses.thresholds import Thresholds
from gpurun.errors import ExitCode, GpurunError
from gpurun.measure.run_summary import read_records
from gpurun.records.codec import to_json
from gpurun.records.diagnosis import DiagnosisReport
from gpurun.records.finding import CRITICAL, WARNING
from gpurun.rundir import existing_home, named_run
from gpurun.timeline.limits import limited
from gpurun.timeline.recordings import KINDS, read_recordings

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
