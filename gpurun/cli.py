"""argv → command, and the one place where errors become lines.

The first word decides: a subcommand's name, else the main form (`gpurun [flags] script args...`).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from gpurun.arguments.flag_parser import HelpAsked, refuse_mistyped, split
from gpurun.arguments.main_flags import MAIN, parse, with_configuration
from gpurun.arguments.options import TargetKind
from gpurun.commands import run_command
from gpurun.commands.written_outputs import print_verdict
from gpurun.errors import ExitCode, GpurunError, ScriptFailed, at_limit, say
from gpurun.trials.signal_guard import deliver_again, leave_stopped_terminals
from gpurun.version import VERSION

HELP = """\
usage: gpurun [flags] script.py [script's arguments]     run it, and record the run
       gpurun --optimize [flags] script.py ...           find faster settings, prove them, train
       gpurun --scale 1,2,4 [flags] script.py ...        how well it scales, and why not better
       gpurun bench --compare main [script.py ...]       is this commit slower? (bench --help)
       gpurun bench bisect GOOD..BAD [script.py ...]     which commit made it slower?
       gpurun profile [flags] script.py ...              why it is not faster (profile --help)
       gpurun diagnose [RUN|TRACE]                       why a recorded run is not faster
       gpurun diagnose BEFORE AFTER                      what made its step slower
       gpurun report [RUN...]                            a page about a run and its cost, or about
                                                         several runs side by side
       gpurun monitor                                    GPUs and trainings under gpurun, live
       gpurun blame script.py ...                        which stored setting makes it go wrong
       gpurun eject script.py ...                        the tuned settings as a patch of it
       gpurun explain NAME                               what a finding or a knob means
       gpurun doctor                                     what is installed, permitted, missing

Flags stand before the script; everything after it belongs to the script. --optimize can choose
among values of a script's argument. Write the script's own value first: --lr @tune:0.1,0.2

{flags}

torchrun's flags (--nproc-per-node, --nnodes, --rdzv-endpoint, --standalone, ...) and its PET_*
variables mean the same as for torchrun: the script runs on torch's elastic agent.
--nnodes auto takes nodes and rendezvous from SLURM's or an operator's variables.
"""
FLAGS = MAIN


def main(args: list[str] | None = None) -> int:
    """Run the command line `args` (default: the process's own) and return the exit code."""
    argv = sys.argv[1:] if args is None else list(args)
    _replace_closed_streams()
    try:
        if args is None:
            _catch_signals()
        return _dispatch(argv)
    except GpurunError as error:
        return _refused(error)
    except KeyboardInterrupt as interrupt:
        return _interrupted(interrupt)
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # python wraps it, as in `__set_name__`
            return _interrupted(error.__cause__)
        foreign = at_limit(error) or _of_surroundings(error)
        return _internal(error) if foreign is None else _refused(foreign)


def _of_surroundings(error: Exception) -> GpurunError | None:
    from gpurun.rundir import of_surroundings

    return of_surroundings(error)


def _catch_signals() -> None:
    """Have signals that would kill this process end it as Ctrl-C does."""
    deliver_again()
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # `nohup` ignores SIGHUP
            signal.signal(number, _raise)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    leave_stopped_terminals()
    raise KeyboardInterrupt(number)


def _interrupted(interrupt: KeyboardInterrupt) -> int:
    number = next(iter(interrupt.args), None)  # a knob may raise it with words
    code = 128 + (number if isinstance(number, int) else signal.SIGINT)
    print_verdict("interrupted", code)
    return code


def _refused(error: GpurunError) -> int:
    say(error.what)
    if error.todo:
        say(error.todo)
    code = error.exit_code if isinstance(error, ScriptFailed) else int(error.code)
    print_verdict(error.verdict, code)
    return code


def _replace_closed_streams() -> None:
    """Nobody reads what we say; the script still runs, with its streams closed as they were."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115 - as long as the process


def _dispatch(argv: list[str]) -> int:
    command = COMMANDS.get(argv[0]) if argv else None
    if command is not None:
        return run_command(command, argv[1:])
    return run_command("gpurun.cli:main_form", argv)


def _working_folder() -> Path:
    """Where the user is, or was: python runs a script in a folder that is gone, too."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        return Path(os.environ.get("PWD") or os.sep)


def main_form(argv: list[str]) -> int:
    """Run the script as the flags before it say."""
    if not argv:
        raise HelpAsked(ExitCode.USAGE)
    if "version" in split(argv, MAIN).own:
        from gpurun.commands.written_outputs import must_write, write_stdout

        must_write("the version", lambda: write_stdout(f"gpurun {VERSION}\n"))
        return int(ExitCode.OK)
    options = with_configuration(parse(argv), _working_folder())
    if options.target.kind is TargetKind.SCRIPT:
        refuse_mistyped(options.target.path, COMMANDS)
    if options.scale is not None:
        from gpurun.commands.scale import scale

        return scale(options)
    if options.optimize:
        from gpurun.commands.optimize import optimize

        return optimize(options)
    from gpurun.commands.run import run

    return run(options)


COMMANDS = {
    "blame": "gpurun.commands.blame:blame",
    "bench": "gpurun.commands.bench:bench",
    "diagnose": "gpurun.commands.diagnose:diagnose",
    "doctor": "gpurun.commands.doctor_command:doctor",
    "eject": "gpurun.commands.eject_command:eject",
    "explain": "gpurun.commands.explain_command:explain",
    "monitor": "gpurun.commands.monitor_command:monitor",
    "profile": "gpurun.commands.profile:profile",
    "report": "gpurun.commands.report_command:report",
}
"""By its word, the place of each command."""


def _internal(error: Exception) -> int:
    """An error of ours: one line, the details in a file."""
    import tempfile
    import traceback

    where = ""
    try:
        handle, path = tempfile.mkstemp(prefix="gpurun-error-", suffix=".txt")
        with os.fdopen(handle, "w") as file:
            file.write("".join(traceback.format_exception(error)))
        where = f" (details: {path})"
    except OSError:
        pass  # no room for details; the line itself still goes out
    text = str(error).splitlines()[0] if str(error) else ""
    say(f"internal error: {type(error).__name__}: {text}{where}")
    print_verdict("internal_error", int(ExitCode.INTERNAL))
    return int(ExitCode.INTERNAL)
