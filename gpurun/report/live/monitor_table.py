"""The tables of `gpurun monitor`: GPUs and their processes, the host, trainings, hints."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from gpurun.formatting.number_text import byte_size, count, if_known, milliseconds, number, percent
from gpurun.formatting.one_line import one_line
from gpurun.records.monitor import GpuProcess, GpuState, HostState, MonitorReport, TrainingState
from gpurun.report.terminal_output import PREFIX, stderr_console, write_lines
from gpurun.report.terminal_table import Column, Grid, print_grid, rich_table

if TYPE_CHECKING:
    from rich.console import Group


LITTLE_ACTIVITY = 50.0
"""Percent: below it the GPU mostly waits."""
MUCH_ACTIVITY = 80.0
LITTLE_MEMORY = 0.5
MEMORY_PRESSURE = 0.95


def hints(gpus: tuple[GpuState, ...]) -> tuple[str, ...]:
    """At most one hint for each GPU that is in use."""
    return tuple(hint for gpu in gpus if (hint := _hint(gpu)))


def _hint(gpu: GpuState) -> str | None:
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    activity = gpu.gpu_utilization_percent
    if used is None or not total or not _in_use(gpu):
        return None
    share = used / total
    name = f"GPU {gpu.gpu_id}"
    memory = f"{percent(share)} of its memory is in use"
    if share >= MEMORY_PRESSURE:
        return f"{name}: {memory}. A little more may end the run out of memory."
    if activity is None:
        return None
    busy = f"{name} is {activity:.0f} % busy, and {memory}"
    if activity < LITTLE_ACTIVITY and share < LITTLE_MEMORY:
        return f"{busy}. There is room for a larger batch: gpurun --optimize measures its gain."
    if activity < LITTLE_ACTIVITY:
        return f"{busy}. It waits for data or for the processor: gpurun profile finds the cause."
    if activity >= MUCH_ACTIVITY and share < LITTLE_MEMORY:
        return f"{busy}. A larger batch would fit, and may be faster."
    return None


def _in_use(gpu: GpuState) -> bool:
    """True if somebody computes on it, as far as it tells."""
    return bool(gpu.processes) or bool(gpu.gpu_utilization_percent)


GPU_COLUMNS = (
    Column("GPU"),
    Column("activity", right=True),
    Column("memory", right=True),
    Column("power", right=True, dropped=2),
    Column("temperature", right=True, dropped=1),
    Column("processes", dropped=3),
)
TRAINING_COLUMNS = (
    Column("run", dropped=2),
    Column("rank", right=True),
    Column("step", right=True),
    Column("step time", right=True, dropped=3),
    Column("samples/s", right=True),
    Column("loss", right=True),
    Column("learning rate", right=True, dropped=1),
    Column("script"),
)
COMMAND_LENGTH = 40
INDENT = 2


def print_state(report: MonitorReport) -> None:
    """Write the tables to stderr once."""
    for title, grid in _grids(report):
        print_grid(title, grid)
    write_lines([[(PREFIX, "bold cyan"), (line, "")] for line in _lines(report)])


def draw(look: Callable[[], MonitorReport], seconds: float) -> NoReturn:
    """Draw the tables of a new look every so many seconds, until an exception ends it."""
    from rich.live import Live

    console = stderr_console()
    with Live(console=console, auto_refresh=False) as live:
        while True:
            time.sleep(seconds)
            live.update(_drawn(look(), console.width), refresh=True)


def _drawn(report: MonitorReport, width: int) -> Group:
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    parts: list[Text | Padding] = []
    for title, grid in _grids(report):
        fitting = grid.fitting(width - INDENT)
        parts += [Text(title, style="bold"), Padding(rich_table(fitting), (0, 0, 1, INDENT))]
    return Group(*parts, *(Text(line) for line in _lines(report)))


def _grids(report: MonitorReport) -> list[tuple[str, Grid]]:
    found = []
    if report.gpus:
        rows = tuple(_gpu_row(gpu) for gpu in report.gpus)
        found.append(("GPUs", Grid(GPU_COLUMNS, rows).without_empty_columns()))
    if report.trainings:
        ranks = tuple(row for training in report.trainings for row in _training_rows(training))
        found.append(
            ("trainings under gpurun", Grid(TRAINING_COLUMNS, ranks).without_empty_columns())
        )
    return found


def _lines(report: MonitorReport) -> list[str]:
    lines = [] if report.host is None else [_host_line(report.host)]
    if not report.gpus:
        lines.append("no GPU is visible here (gpurun doctor says why)")
    if not report.trainings:
        lines.append("no training runs under gpurun in this folder")
    return [*lines, *(f"hint: {hint}" for hint in report.hints)]


def _gpu_row(gpu: GpuState) -> tuple[str, ...]:
    activity, watts, celsius = gpu.gpu_utilization_percent, gpu.power_watts, gpu.temperature_celsius
    return (
        f"{gpu.gpu_id} {gpu.name}",
        "" if activity is None else f"{activity:.0f} %",
        _of(gpu.memory_used_bytes, gpu.memory_total_bytes),
        "" if watts is None else f"{watts:.0f} W",
        "" if celsius is None else f"{celsius:.0f} °C",
        "; ".join(_process_text(process) for process in gpu.processes or ()),
    )


def _process_text(process: GpuProcess) -> str:
    command = one_line(process.command or "(hidden)", COMMAND_LENGTH)
    used = process.memory_used_bytes
    return f"{process.pid} {command}" + ("" if used is None else f" {byte_size(used)}")


def _training_rows(training: TrainingState) -> list[tuple[str, ...]]:
    script = one_line(shlex.join(training.command), COMMAND_LENGTH)
    return [
        (
            training.run,
            "" if rank.rank is None else str(rank.rank),
            f"{rank.steps:,}",
            "" if rank.step_time_seconds is None else milliseconds(rank.step_time_seconds * 1e3),
            if_known(number, rank.samples_per_second),
            if_known(number, rank.loss),
            "" if rank.learning_rate is None else f"{rank.learning_rate:.3g}",
            script,
        )
        for rank in training.ranks
    ]


def _host_line(host: HostState) -> str:
    busy = "" if host.cpu_percent is None else f"{host.cpu_percent:.0f} % of "
    memory = _of(host.memory_used_bytes, host.memory_total_bytes)
    return f"processor: {busy}{count(host.cores, 'core')}; memory: {memory}"


def _of(used: int | None, total: int | None) -> str:
    if used is None or not total:
        return ""
    return f"{byte_size(used)} of {byte_size(total)} ({percent(used / total)})"
