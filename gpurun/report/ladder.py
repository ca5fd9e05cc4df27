"""The end of `--optimize`: the ladder of changes, the verdict, what to type next."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace
from pathlib import Path

from gpurun.formatting.knob_text import knob_change, knobs_text
from gpurun.formatting.number_text import (
    byte_size,
    count,
    duration,
    factor,
    interval,
    joules,
    number,
    percent,
)
from gpurun.formatting.one_line import one_line
from gpurun.records.tuning import (
    APPLICABLE,
    PROVEN,
    Candidate,
    GuardVerdict,
    LadderRow,
    LossCurves,
    Rejection,
    TuningReport,
)
from gpurun.report.sparklines import sparklines
from gpurun.report.terminal_output import PREFIX, VERBATIM, Line, write_lines
from gpurun.report.terminal_table import Column, Grid, print_grid
from gpurun.report.tuning_verdict import larger_batch_sentences, remarks, verdict_sentence

COLUMNS = (
    Column("change", width=18),
    Column("samples/s", right=True),
    Column("gain", right=True),
    Column("95 % CI", right=True, dropped=3),
    Column("memory", right=True, dropped=1),
    Column("energy/sample", right=True),
    Column("Δ loss", right=True, dropped=2),
    Column("answers", dropped=0),
    Column("effect"),
    Column("kept?"),
)
"""`gain` of a row compares the chosen settings with and without the change, by a live pair. `gain`
of the last row is the proof's, over the script as it is. Nothing else is compared.
`answers`: the finding whose cause the change may remove.

The effect never leaves a narrow terminal: nobody should change their training unawares.
"""
CHOSEN = "all that is kept"
NOT_MEASURED = "not measured"


LATE_SECONDS = 3.0
"""A start that takes so many seconds longer is shown."""


def ladder_grid(report: TuningReport) -> Grid:
    """The ladder: the script as it is, then one row a change; what was not measured is empty."""
    rows = [_baseline_row(report, report.baseline)] if report.baseline is not None else []
    styles = [""] * len(rows)
    for row in report.ladder:
        rows.append(_row(report, row))
        styles.append("" if row.kept else "dim")
    if report.verdict in PROVEN and report.chosen is not None:
        rows.append(_chosen_row(report, report.chosen))
        styles.append("bold")
    return Grid(_columns(report), tuple(rows), tuple(styles)).without_empty_columns()


def _columns(report: TuningReport) -> tuple[Column, ...]:
    """The columns; of a script that only infers outputs are compared, not losses."""
    names = {"memory": _memory_heading(report)}
    if any(row.output_deviation is not None for row in report.ladder):
        names["Δ loss"] = "Δ out"
    return tuple(replace(c, heading=names.get(c.heading, c.heading)) for c in COLUMNS)


def _memory_heading(report: TuningReport) -> str:
    """Whose memory it is: on the CPU loader workers have theirs besides."""
    return {"GPU": "GPU memory", "main process": "memory (main process)"}.get(
        report.memory_of, "memory"
    )


def _baseline_row(report: TuningReport, base: Candidate) -> tuple[str, ...]:
    rate, memory = _rate(base.samples_per_second), _size(base.peak_memory_bytes)
    name = "script made to fit" if base.knobs else "script as it is"
    energy = _energy(report, base.joules_per_sample)
    return (name, rate, "", "", memory, energy, "", "", "", "")


def _chosen_row(report: TuningReport, chosen: Candidate) -> tuple[str, ...]:
    gain, bounds = report.speedup, report.speedup_confidence_interval
    if report.objective != "throughput":
        gain = bounds = None  # the price of what was proven
    return (
        CHOSEN,
        _rate(chosen.samples_per_second),
        factor(gain) if gain is not None else "",
        "" if bounds is None else interval(bounds) or "",
        _size(chosen.peak_memory_bytes),
        _energy(report, chosen.joules_per_sample),
        "",
        "",
        "",
        "",
    )


def _row(report: TuningReport, row: LadderRow) -> tuple[str, ...]:
    reason = one_line(row.reason) or _price(row)
    outcome = f"{'yes' if row.kept else 'no'}{': ' if reason else ''}{reason}"
    return (
        knob_change(row.knob, row.value),
        "",
        _share(report, row) if row.kept else "",
        "",
        _size(row.peak_memory_bytes),
        _energy(report, row.joules_per_sample),
        _deviation(row),
        "" if row.answers is None else row.answers.value.replace("_", " "),
        row.effect,
        outcome,
    )


def _deviation(row: LadderRow) -> str:
    off = row.loss_deviation if row.output_deviation is None else row.output_deviation
    return "" if off is None else percent(off)


def _price(row: LadderRow) -> str:
    """The start-up cost of a kept change; nothing below a moment."""
    if not row.kept or row.startup_seconds is None or row.startup_seconds < LATE_SECONDS:
        return ""
    late = f"starts {row.startup_seconds:.0f} s later"
    steps = row.break_even_steps
    return late if steps is None else f"{late}, repaid after {count(steps, 'step')}"


def _rate(value: float | None) -> str:
    return number(value) if value is not None else ""


def _size(value: int | None) -> str:
    return byte_size(value) if value is not None else ""


def _energy(report: TuningReport, value: float | None) -> str:
    """Energy is a column of a tuning for it; samples/s and memory are always of interest."""
    return joules(value) if value is not None and report.objective == "energy" else ""


def _share(report: TuningReport, row: LadderRow) -> str:
    """The gain of a kept change, if the whole was proven."""
    if row.speedup is not None:
        return factor(row.speedup)
    return NOT_MEASURED if report.verdict in PROVEN else ""


def closing_lines(report: TuningReport, record: Path | None = None) -> list[Line]:
    """All that stands below the ladder: verdict, loss guard, larger batch, what to type next."""
    good = report.verdict in PROVEN
    lines: list[Line] = [[(verdict_sentence(report), "bold green" if good else "bold")]]
    if report.chosen is not None and report.chosen.knobs:
        lines.append([(f"settings: {knobs_text(report.chosen.knobs)}", "")])
    lines += [[(line, "red" if i == 0 else "")] for i, line in enumerate(guard_lines(report.guard))]
    lines += [[(line, "")] for line in rejection_lines(report)]
    lines += [[(line, "")] for line in larger_batch_sentences(report)]
    lines += [[(remark, "yellow")] for remark in remarks(report)]
    lines += _next_lines(report)
    trials = count(len(report.trials), "trial")
    isolation = f", isolation: {report.isolation}" if report.isolation else ""
    proven = ""
    if good and report.proof_seconds is not None:
        proven = f", proven after {duration(report.proof_seconds)}"
    spent = f"{trials} in {duration(report.tuning_seconds)}{proven}{isolation}"
    lines.append([(spent, "dim")])
    if record is not None:
        lines.append([("record: ", "dim"), (str(record), VERBATIM)])
    return lines


def guard_lines(guard: GuardVerdict | None) -> list[str]:
    """The loss guard's objections with both curves; nothing if it had none."""
    if guard is None or guard.accepted:
        return []
    reasons = "; ".join(one_line(reason) for reason in guard.reasons)
    lines = [f"{_name(guard)}: rejected{': ' if reasons else ''}{reasons}"]
    if guard.curves is not None:
        lines += curve_lines(guard.curves)
    return lines


def _name(guard: GuardVerdict) -> str:
    return "output guard" if guard.forward_only else "loss guard"


def rejection_lines(report: TuningReport) -> list[str]:
    """One line for each of the settings that the loss guard rejected on the way."""
    return [rejection_line(rejection) for rejection in rejections_on_the_way(report)]


def rejections_on_the_way(report: TuningReport) -> list[Rejection]:
    """The rejections, except of the finalist and of the larger batch: others report these."""
    larger = report.larger_batch
    told = (report.guard, None if larger is None else larger.guard)
    return [rejection for rejection in report.rejections if rejection.guard not in told]


def rejection_line(rejection: Rejection) -> str:
    """Settings, reasons, and how far the loss was off where it was compared."""
    guard = rejection.guard
    off = "" if guard.loss_deviation is None else f" (loss off by {percent(guard.loss_deviation)})"
    reasons = "; ".join(one_line(reason) for reason in guard.reasons)
    return f"{_name(guard)}: rejected {knobs_text(rejection.knobs)}: {reasons}{off}"


def curve_lines(curves: LossCurves) -> list[str]:
    """Both loss curves on one scale, with their last values."""
    charts = sparklines((curves.baseline, curves.candidate))
    pairs = (("baseline ", curves.baseline), ("candidate", curves.candidate))
    return [
        f"  loss, {name} {chart} {_last(values)}".rstrip()
        for (name, values), chart in zip(pairs, charts, strict=True)
    ]


def _last(values: tuple[float | None, ...]) -> str:
    measured = [v for v in values if v is not None]
    if not measured:
        return ""
    return number(measured[-1]) if math.isfinite(measured[-1]) else str(measured[-1])


def _next_lines(report: TuningReport) -> list[Line]:
    if report.verdict not in APPLICABLE or not report.invocation:
        return []
    command = shlex.join(report.invocation)
    return [[("with these settings, without trials: ", ""), (command, VERBATIM)]]


def print_ladder(report: TuningReport, record: Path | None = None) -> None:
    """Write the ladder and all that stands below it to stderr. `record`: the run folder."""
    if report.ladder:
        write_lines([[("", "")]])
        print_grid("", ladder_grid(report))
        write_lines([[("", "")]])
    write_lines([[(PREFIX, "bold cyan"), *line] for line in closing_lines(report, record)])
