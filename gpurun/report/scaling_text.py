"""The result of `--scale` on the terminal: a table, findings and the projection."""

from __future__ import annotations

from gpurun.formatting.number_text import (
    byte_size,
    count,
    duration,
    factor,
    if_known,
    milliseconds,
    number,
    percent,
)
from gpurun.formatting.one_line import one_line
from gpurun.records.finding import CRITICAL
from gpurun.records.result import StepSplit
from gpurun.records.scaling import ScalingFinding, ScalingPoint, ScalingReport, ScalingWay
from gpurun.report.terminal_output import PREFIX, write_plain
from gpurun.report.terminal_table import Column, Grid, print_grid
from gpurun.stats.descriptive import says_nothing

KIND = {
    "weak": "weak scaling: each device keeps the script's batch",
    "strong": "strong scaling: all devices share the script's batch",
}
PROJECTED = (16, 64, 256, 1024)
"""Counts of the projection that are shown; the document has all."""
MOST_SHOWN = 10.0
"""An interval is not written out if its upper end is this many times its lower end."""
OF_STEP = 0.005
"""Parts of a step below this share are not named."""


def print_scaling(report: ScalingReport) -> None:
    """Write all of it to stderr."""
    print_grid(title(report), grid(report))
    write_plain([f"{PREFIX}{line}" for line in scaling_lines(report)])


def title(report: ScalingReport) -> str:
    """The title of the table."""
    over = ", shared by more ranks" if report.oversubscribed else ""
    nodes = "" if report.nodes == 1 else f" on {report.nodes} nodes"
    devices = f"{count(report.devices, 'device')}{nodes}: {report.device}{over}"
    return f"{KIND.get(report.mode, report.mode)} ({devices})"


def grid(report: ScalingReport) -> Grid:
    """One row a count; columns in which nothing was measured are left out."""
    columns = (
        Column("devices", right=True),
        Column("samples/s", right=True),
        Column("speedup", right=True),
        Column("efficiency", right=True),
        Column("95 % interval", right=True),
        Column("step", right=True),
        Column("exposed comm.", right=True, dropped=3),
        Column("imbalance", right=True, dropped=2),
        Column("peak memory", right=True, dropped=1),
        Column("of the step"),
    )
    return Grid(columns, tuple(_row(point) for point in report.points)).without_empty_columns()


def _row(point: ScalingPoint) -> tuple[str, ...]:
    exposed = point.exposed_communication_percent
    interval = point.efficiency_confidence_interval
    return (
        f"{point.gpus}",
        if_known(number, point.samples_per_second),
        if_known(factor, point.speedup),
        if_known(percent, point.efficiency),
        "" if interval is None else _interval(interval),
        if_known(milliseconds, point.step_time_ms),
        "" if exposed is None else percent(exposed / 100),
        "" if point.imbalance is None else percent(point.imbalance - 1),
        if_known(byte_size, point.peak_memory_bytes),
        one_line(point.error, 80) if point.error else _split(point.step_split, point.step_time_ms),
    )


def _interval(bounds: tuple[float, float]) -> str:
    if bounds[1] > MOST_SHOWN * bounds[0]:
        return "undecided"
    return f"{bounds[0] * 100:.1f}–{bounds[1] * 100:.1f} %"


def _split(split: StepSplit | None, step_ms: float | None) -> str:
    """The parts of a step, the largest first."""
    if split is None or not step_ms:
        return ""
    parts = {
        "data": split.data_wait_ms,
        "copy": split.host_to_device_copy_ms,
        "forward": split.forward_ms,
        "backward": split.backward_ms,
        "optimizer": split.optimizer_ms,
        "rest": split.rest_ms,
    }
    shares = {name: (value or 0.0) / step_ms for name, value in parts.items()}
    shown = sorted((n for n in shares if shares[n] >= OF_STEP), key=lambda n: -shares[n])
    return ", ".join(f"{name} {shares[name] * 100:.0f} %" for name in shown)


def scaling_lines(report: ScalingReport) -> list[str]:
    """The lines below the table."""
    lines = []
    if report.distributed is not None:
        lines.append(f"the script is distributed by itself: {one_line(report.distributed)}")
    for finding in report.findings:
        lines += _finding(finding)
    lines += [_way(way) for way in report.tried]
    lines += _projection(report)
    lines += [one_line(note) for note in report.notes]
    rounds = "no round of launches was finished"
    if report.rounds:
        rounds = f"{count(report.rounds, 'round')} of launches one after the other"
    lines.append(f"{rounds}, {duration(report.seconds)} in all")
    return lines


def _finding(finding: ScalingFinding) -> list[str]:
    gain = ""
    if finding.gain_upper_bound is not None:
        gain = f" (without it at most {factor(finding.gain_upper_bound)})"
    grade = "critical" if finding.severity > CRITICAL else "warning"
    head = f"{grade}, {finding.type} at {finding.gpus}: {finding.description}{gain}"
    return [head, *(f"  {advice}" for advice in finding.recommendations)]


PRICES = {"numerics": ", rounds gradients", "training": ", changes training"}
"""The price of an option, by its effect."""


def _way(way: ScalingWay) -> str:
    knobs = [f"{name} {value}" for name, value in way.settings.items()]
    flag = [f"--ddp-options {way.ddp_options}"] if way.ddp_options else []
    head = f"tried: {', '.join(knobs + flag)}"
    if way.error is not None:
        return f"{head}: {one_line(way.error, 80)}"
    if way.speedup is None:
        return f"{head}: not measured"
    bounds = way.speedup_confidence_interval
    within = ""
    if bounds is not None and not says_nothing(bounds):
        within = f" ({bounds[0]:.2f}–{bounds[1]:.2f})"
    price = PRICES.get(way.effect, "")
    return f"{head}: {factor(way.speedup)}{within}{price}{', faster' if way.faster else ''}"


def _projection(report: ScalingReport) -> list[str]:
    ahead = report.projection
    if ahead is None:
        return []
    shown = [point for point in ahead.points if point.gpus in PROJECTED]
    text = "; ".join(
        f"{point.gpus:,}: {percent(point.efficiency)} ({_interval(point.efficiency_band)})"
        for point in shown
    )
    fitted = ", ".join(map(str, ahead.fitted_to))
    return [f"{ahead.label}: efficiency at {text}; fitted to {fitted}", f"  {ahead.assumptions[0]}"]
