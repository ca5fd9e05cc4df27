"""`gpurun doctor`: what is installed, permitted and missing here, what that costs, what to do."""

from __future__ import annotations

from pathlib import Path

from gpurun.arguments.flag_table import flags_of
from gpurun.arguments.subcommand_flags import DoctorOptions, parse_doctor
from gpurun.commands.written_outputs import check_outputs, emit_json, print_verdict
from gpurun.errors import ExitCode
from gpurun.records.codec import to_json
from gpurun.records.command_reports import Check, DoctorReport, State

HELP = """\
usage: gpurun doctor [flags]     what is installed, permitted or missing here

{flags}

The exit code is 0, whatever is missing.
"""
FLAGS = flags_of(DoctorOptions)


def doctor(argv: list[str]) -> int:
    """Look, show the table, write the document; exit code 0 whatever was found."""
    options = parse_doctor(argv)
    check_outputs(json=options.json)
    report = examine(Path.cwd(), options.out, options.gpu)
    if not options.quiet:
        _show(report.checks)
    emit_json(options.json, to_json(report), needed=True)
    missing = sum(check.state is State.MISSING for check in report.checks)
    limited = sum(check.state is State.LIMITED for check in report.checks)
    print_verdict(report.verdict, int(ExitCode.OK), missing=missing, limited=limited)
    return int(ExitCode.OK)


def examine(cwd: Path, out: str | None, at_work: bool = False) -> DoctorReport:
    """Everything that was looked at, in the order in which it is shown; `at_work`: the GPUs too."""
    from gpurun.doctor.driver_probe import probe
    from gpurun.doctor.gpu_checks import gpu_checks
    from gpurun.doctor.software_checks import profiling_checks, software_checks
    from gpurun.doctor.system_checks import system_checks

    machine = probe()
    checks = (
        *software_checks(machine),
        *profiling_checks(machine),
        *system_checks(machine, cwd, out),
        *(gpu_checks(bool(machine.gpus)) if at_work else ()),
    )
    fine = all(check.state in (State.OK, State.UNNEEDED) for check in checks)
    return DoctorReport("ok" if fine else "limited", checks)


def _show(checks: tuple[Check, ...]) -> None:
    from gpurun.report.terminal_output import PREFIX, write_lines
    from gpurun.report.terminal_table import print_table

    rows = [(c.what, c.state.value, c.found, c.cost) for c in checks]
    print_table("gpurun doctor", ("what", "state", "found", "what it costs"), rows)
    todo = [f"{check.what}: {check.todo}" for check in checks if check.todo]
    write_lines([[(PREFIX, "bold cyan"), (line, "")] for line in todo])
