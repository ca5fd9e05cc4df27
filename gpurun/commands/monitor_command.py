"""`gpurun monitor`: GPUs, their processes and the trainings under gpurun, as they are now."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

from gpurun.arguments.flag_table import flags_of
from gpurun.arguments.gpurun_toml import load_config
from gpurun.arguments.subcommand_flags import MonitorOptions, parse_monitor
from gpurun.commands.written_outputs import check_outputs, emit_json, print_verdict
from gpurun.errors import ExitCode
from gpurun.measure.machine_state import MachineState
from gpurun.records.codec import to_json
from gpurun.records.monitor import MonitorReport
from gpurun.rundir import existing_home
from gpurun.trials.signal_guard import leave_stopped_terminals

HELP = """\
usage: gpurun monitor [flags]     GPUs, their processes and the trainings under gpurun, live

On a terminal it draws them every second until Ctrl-C; elsewhere it looks once. Trainings are those
of this folder. Without a GPU it shows processor, memory and trainings.

{flags}
"""
FLAGS = flags_of(MonitorOptions)
LOOK_SECONDS = 1.0
"""Use of processor and GPU is measured between two looks."""


def monitor(argv: list[str]) -> int:
    """Look once, or until Ctrl-C or SIGTERM; exit code 0."""
    options = parse_monitor(argv)
    check_outputs(json=options.json)
    out = options.out or load_config(Path.cwd()).out
    machine = MachineState(existing_home(Path.cwd(), out))
    try:
        if options.prometheus is not None:
            _serve(machine, options)
        elif options.once or options.json is not None or not _can_draw():
            _look_once(machine, options)
        else:
            _draw(machine)
    finally:
        machine.close()
    print_verdict("ok", int(ExitCode.OK))
    return int(ExitCode.OK)


def _look(machine: MachineState) -> MonitorReport:
    from gpurun.report.live.monitor_table import hints

    report = machine.look()
    return replace(report, hints=hints(report.gpus))


def _look_once(machine: MachineState, options: MonitorOptions) -> None:
    machine.look()
    time.sleep(LOOK_SECONDS)
    report = _look(machine)
    emit_json(options.json, to_json(report), needed=True)
    if not options.quiet and options.json != "-":
        from gpurun.report.live.monitor_table import print_state

        print_state(report)


def _serve(machine: MachineState, options: MonitorOptions) -> None:
    from gpurun.report.live.metrics_server import MetricsServer
    from gpurun.report.terminal_output import write_plain

    assert options.prometheus is not None
    server = MetricsServer(options.prometheus)
    machine.look()
    with _until_stopped():
        server.start(machine.look)
        if not options.quiet:
            write_plain([f"gpurun: metrics: {server.url}"])
        signal.pause()
    server.close()


def _draw(machine: MachineState) -> None:
    from gpurun.report.live.monitor_table import draw

    machine.look()
    with _until_stopped():
        draw(lambda: _look(machine), LOOK_SECONDS)


def _can_draw() -> bool:
    from gpurun.report.terminal_output import on_terminal

    return on_terminal()


@contextmanager
def _until_stopped() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the block, and are no errors."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        leave_stopped_terminals()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, before)
