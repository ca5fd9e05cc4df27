"""The end of `--optimize`: the ladder of stages, the verdict, what to type next."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

from gpurun.formatting.knob_text import knob_value, knobs_text
from gpurun.formatting.number_text import (
    byte_size,
    count,
    duration,
    factor,
    if_known,
    interval,
    joules,
    milliseconds,
    number,
    percent,
)
from gpurun.formatting.one_line import one_line
from gpurun.records.effects import Effect
from gpurun.records.tuning import (
    APPLICABLE,
    PROVEN,
    GuardVerdict,
    LadderRow,
    LossCurves,
    Rejection,
    TuningReport,
)
from gpurun.report.terminal_output import PREFIX, VERBATIM, Line, write_lines
from gpurun.report.terminal_table import Column, Grid, print_grid, sparklines
from gpurun.report.tuning_verdict import (
    larger_batch_sentences,
    proof_in_words,
    proven_factor,
    remarks,
    verdict_sentence,
)
from gpurun.tuner.search.changes import BATCH

BATCH_COLUMNS = (
    Column("batch", right=True),
    Column("samples/s", right=True),
    Column("step", right=True),
    Column("memory", right=True),
    Column("of the GPU", right=True),
    Column(""),
)
COLUMNS = (
    Column("stage", width=18),
    Column("samples/s", right=True, dropped=3),
    Column("so far", right=True),
    Column("step", right=True),
    Column("95 % CI", right=True, dropped=4),
    Column("memory", right=True, dropped=1),
    Column("GPU", right=True, dropped=0),
    Column("energy/sample", right=True),
    Column("samples/J", right=True),
    Column("Δ loss", right=True, dropped=2),
    Column("changes"),
)
"""`so far`: over the script as it is; `step`: over the row above. The interval is that of the step
where the row has one, else that of `so far`."""
AS_IT_IS, PROOF = "as it is", "proven"
"""The stage of the first row, and the name of the row of the proof."""
ALL = " = all"
"""Ends the name of the last row that is kept, where the whole is proven."""
NOT_KEPT = "tried and not kept:"
WITHOUT_TRIALS = "with these settings, without trials:"
LATE_SECONDS = 3.0
"""A start that takes so many seconds longer is shown."""


def ladder_rows(report: TuningReport) -> list[tuple[str, LadderRow]]:
    """The rows of every view of the ladder, with their names: what is kept, its proof, batches.

    A larger batch that is not kept is a row if its gain was measured. `not_kept` has the others.
    """
    kept = [(stage_name(row), row) for row in report.ladder if row.kept]
    if report.verdict in PROVEN and kept:
        kept[-1] = (kept[-1][0] + ALL, kept[-1][1])
        told = proof_in_words(report)
        kept.append(
            (PROOF, LadderRow(PROOF, {}, "", True, None, *proven_factor(report), reason=told))
        )
    return kept + [(stage_name(row), row) for row in report.ladder if _offered(row)]


def stage_name(row: LadderRow) -> str:
    """The name of a row: "+ data, transfer", "+ batch 128 (training)"."""
    if row.stage == AS_IT_IS:
        return "script as it is"
    name = ", ".join((*row.merged, row.stage))
    if BATCH in row.changes:
        name += f" {knob_value(row.changes[BATCH]).partition(' ')[0]}"
    return f"+ {name}{' (training)' if row.effect == Effect.TRAINING.value else ''}"


def _offered(row: LadderRow) -> bool:
    return not row.kept and row.stage == "batch" and row.speedup is not None


def not_kept(report: TuningReport) -> list[str]:
    """A line for each reason for which changes were tried and not kept."""
    reasons: dict[str, list[str]] = {}
    for row in report.ladder:
        if not row.kept and not _offered(row):
            reasons.setdefault(one_line(row.reason), []).append(knobs_text(row.changes))
    return [f"{', '.join(changes)}: {reason}" for reason, changes in reasons.items()]


def ladder_grid(report: TuningReport) -> Grid:
    """The ladder as a table; what was not measured is empty."""
    rows = ladder_rows(report)
    cells = tuple(_cells(report, name, row) for name, row in rows)
    styles = tuple("bold" if name == PROOF else "" if row.kept else "dim" for name, row in rows)
    return Grid(_columns(report), cells, styles).without_empty_columns()


def batch_grid(report: TuningReport) -> Grid:
    """What was seen of each batch size under the same other settings; empty if of one alone."""
    rows = tuple(
        (
            str(one.batch_size),
            if_known(number, one.samples_per_second),
            if_known(milliseconds, one.step_time_ms),
            if_known(byte_size, one.peak_memory_bytes),
            if_known(percent, one.memory_share),
            one_line("; ".join(one.told)),
        )
        for one in report.batches
    )
    return Grid(BATCH_COLUMNS, rows if len(rows) > 1 else ()).without_empty_columns()


def _columns(report: TuningReport) -> tuple[Column, ...]:
    """The columns; what is tuned for stays, and of a script that only infers outputs are compared,
    not losses."""
    infers = any(row.output_deviation is not None for row in report.ladder)
    host = " (main process)" if report.memory_of == "main process" else ""
    names = {"memory": f"memory{host}", "Δ loss": "Δ out" if infers else "Δ loss"}
    return tuple(
        replace(c, heading=names.get(c.heading, c.heading), dropped=None)
        if c.heading == report.objective
        else replace(c, heading=names.get(c.heading, c.heading))
        for c in COLUMNS
    )


def _cells(report: TuningReport, name: str, row: LadderRow) -> tuple[str, ...]:
    gain, step, bounds = row.speedup, row.step_speedup, row.step_speedup_confidence_interval
    if step is None:
        bounds = row.speedup_confidence_interval
    if report.objective != "throughput" and name != PROOF:
        gain = step = bounds = None  # the price of what is tuned for
    return (
        name,
        if_known(number, row.samples_per_second),
        if_known(factor, gain),
        if_known(factor, step),
        interval(bounds) or "",
        if_known(byte_size, row.peak_memory_bytes),
        if_known("{:.0f} %".format, row.gpu_utilization_percent),
        *_energy(report, row),
        _deviation(row),
        _changes(row),
    )


def _energy(report: TuningReport, row: LadderRow) -> tuple[str, str]:
    """Joules a sample and samples a joule, where the tuning is for energy."""
    each = row.joules_per_sample
    if report.objective != "energy" or not each:
        return "", ""
    return joules(each), number(1 / each)


def _deviation(row: LadderRow) -> str:
    if row.effect == Effect.TRAINING.value:
        return "other"
    off = row.loss_deviation if row.output_deviation is None else row.output_deviation
    return if_known(percent, off)


def _changes(row: LadderRow) -> str:
    """The changes, and what is to be said of them; a batch size stands in the name of its row."""
    others = {knob: value for knob, value in row.changes.items() if knob != BATCH}
    changes = knobs_text(others) if others else ""
    return "; ".join(filter(None, (changes, one_line(row.reason) or _price(row))))


def _price(row: LadderRow) -> str:
    """The start-up cost of a row; nothing below a moment."""
    if row.startup_seconds is None or row.startup_seconds < LATE_SECONDS:
        return ""
    late = f"starts {row.startup_seconds:.0f} s later"
    steps = row.break_even_steps
    return late if steps is None else f"{late}, repaid after {count(steps, 'step')}"


def closing_lines(report: TuningReport, record: Path | None = None) -> list[Line]:
    """All that stands below the ladder: verdict, loss guard, larger batch, what to type next."""
    style = "bold green" if report.verdict in PROVEN else "bold"
    lines: list[Line] = [[(verdict_sentence(report), style)]]
    lines += [[(line, "red" if i == 0 else "")] for i, line in enumerate(guard_lines(report.guard))]
    lines += [[(rejection_line(rejection), "")] for rejection in rejections_on_the_way(report)]
    lines += [[(line, "")] for line in larger_batch_sentences(report)]
    lines += [[(remark, "yellow")] for remark in remarks(report)]
    if report.verdict in APPLICABLE and report.invocation:
        lines.append([(f"{WITHOUT_TRIALS} ", ""), (shlex.join(report.invocation), VERBATIM)])
    lines.append([(spent_sentence(report), "dim")])
    if record is not None:
        lines.append([("record: ", "dim"), (str(record), VERBATIM)])
    return lines


def spent_sentence(report: TuningReport) -> str:
    """How much work the tuning was, and when the gain was proven."""
    spent = f"{count(len(report.trials), 'trial')} in {duration(report.tuning_seconds)}"
    if report.verdict in PROVEN and report.proof_seconds is not None:
        spent += f", proven after {duration(report.proof_seconds)}"
    return spent + (f", isolation: {report.isolation}" if report.isolation else "")


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
    return number(measured[-1]) if measured else ""


def print_ladder(report: TuningReport, record: Path | None = None) -> None:
    """Write the ladder and all that stands below it to stderr. `record`: the run folder."""
    grid, others = ladder_grid(report), not_kept(report)
    if grid.rows:
        write_lines([[("", "")]])
        print_grid("", grid)
    if (batches := batch_grid(report)).rows:
        write_lines([[("", "")]])
        print_grid("", batches)
    if others:
        write_lines([[(f"  {NOT_KEPT}", "bold")], *([(f"    {line}", "dim")] for line in others)])
    write_lines([[("", "")]] if report.ladder else [])
    write_lines([[(PREFIX, "bold cyan"), *line] for line in closing_lines(report, record)])
