"""Sections of a tuning: the ladder with its picture, the ceilings, the loss guard, the trials."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpurun.formatting.knob_text import knob_change, knobs_text
from gpurun.formatting.number_text import (
    byte_size,
    count,
    duration,
    factor,
    interval,
    milliseconds,
    number,
)
from gpurun.records.tuning import (
    PROVEN,
    Ceilings,
    LadderRow,
    LossCurves,
    TrialRecord,
    TuningReport,
)
from gpurun.report.ladder import CHOSEN, ladder_grid, rejection_line, rejections_on_the_way
from gpurun.report.page.bar_chart import Bar, bar_chart
from gpurun.report.page.line_chart import Line, line_chart
from gpurun.report.page.page_blocks import Block, Bullets, Paragraph, Picture, Section, Table
from gpurun.report.page.recorded_series import series_of
from gpurun.report.page.run_contents import RunContents
from gpurun.report.terminal_table import Column, Grid
from gpurun.report.trial_text import outcome_text

_TRIAL_COLUMNS = (
    Column("#", right=True),
    Column("purpose"),
    Column("settings"),
    Column("samples/s", right=True),
    Column("step p50", right=True),
    Column("memory", right=True),
    Column("took", right=True),
    Column("state"),
)


_REJECTED = "Loss by step of a rejected change"
_LOWEST, _HIGHEST = "lowest of all baseline trials", "highest of all baseline trials"


def tuning_sections(contents: RunContents) -> Iterator[Section]:
    """The sections that the tuning has data for."""
    report = contents.tuning
    if report is not None:
        if report.ladder:
            yield _ladder(report)
        if report.ceilings is not None and (picture := ceilings_picture(report.ceilings)):
            yield Section("Ceilings", (picture,))
        if guard := _guard(report):
            yield Section("Loss guard", tuple(guard))


def trials_section(contents: RunContents) -> Section | None:
    """Every trial, and the decisions of the search; None where there are no trials."""
    if not contents.trials:
        return None
    blocks: list[Block] = [Table(_trials_grid(contents.trials))]
    if contents.tuning is not None and contents.tuning.decisions:
        blocks += [Paragraph("Decisions:"), Bullets(contents.tuning.decisions)]
    return Section("Trials", tuple(blocks))


def _trials_grid(trials: Sequence[TrialRecord]) -> Grid:
    """Every trial with its figures; columns in which nothing was measured are left out."""
    return Grid(_TRIAL_COLUMNS, tuple(_trial_row(t) for t in trials)).without_empty_columns()


def _trial_row(trial: TrialRecord) -> tuple[str, ...]:
    rate, memory, times = trial.samples_per_second, trial.peak_memory_bytes, trial.step_time_ms
    return (
        str(trial.number),
        trial.purpose.value,
        knobs_text(trial.knobs),
        number(rate) if rate is not None else "",
        milliseconds(times.p50) if times is not None else "",
        byte_size(memory) if memory is not None else "",
        duration(trial.seconds),
        outcome_text(trial) or trial.status,
    )


def _ladder(report: TuningReport) -> Section:
    blocks: list[Block] = []
    picture = ladder_picture(report)
    if picture is not None:
        blocks.append(picture)
    blocks.append(Table(ladder_grid(report)))
    if report.verdict in PROVEN:
        blocks.append(
            Paragraph(
                "The gain of a change compares all that is kept with the same settings without it. "
                "Only the last row is proven."
            )
        )
    return Section("Ladder", tuple(blocks))


def ladder_picture(report: TuningReport) -> Picture | None:
    """The measured gains as bars; None where no speedup was proven."""
    whole, rows = report.speedup, [row for row in report.ladder if row.kept]
    if whole is None or report.verdict != "faster":
        return None
    bounds = report.speedup_confidence_interval
    within = interval(bounds)
    bars = [Bar(ladder_grid(report).rows[0][0], factor(1.0), 1.0), *map(_bar, rows)]
    told = f"{factor(whole)}{f' ({within})' if within else ''}"
    bars.append(Bar(CHOSEN, told, whole, bounds if within else None, strong=True))
    title = "Gain of each change that is kept (factor of throughput)"
    sentence = "The dashed mark is ×1.00. The table has the same figures."
    return Picture(bar_chart(title, bars, mark=1.0), sentence)


def _bar(row: LadderRow) -> Bar:
    told = "alone: not measured" if row.speedup is None else factor(row.speedup)
    return Bar(knob_change(row.knob, row.value), told, row.speedup)


def ceilings_picture(ceilings: Ceilings) -> Picture | None:
    """The speed of loader, model and script as bars; None where neither side was measured."""
    rates = (
        ("loader alone", ceilings.loader_samples_per_second),
        ("model alone", ceilings.model_samples_per_second),
        ("the script", ceilings.script_samples_per_second),
    )
    if rates[0][1] is None and rates[1][1] is None:
        return None
    bars = [Bar(name, f"{number(r)} samples/s", r) for name, r in rates if r is not None]
    sentence = "; ".join(f"{bar.name}: {bar.told}" for bar in bars)
    return Picture(bar_chart("Each side of the training alone, as it is", bars), f"{sentence}.")


def _guard(report: TuningReport) -> list[Block]:
    """The loss of what was judged in the end, and the rejections, where losses were compared."""
    blocks: list[Block] = []
    guard = report.guard
    if guard is not None and guard.accepted and "losses" in guard.compared:
        blocks += _curves(guard.curves, "Loss by step with the settings")
    elif guard is not None and not guard.accepted:
        blocks.append(Paragraph(f"Rejected: {'; '.join(guard.reasons)}", strong=True))
        blocks += _curves(guard.curves, _REJECTED)
    for rejection in rejections_on_the_way(report):
        blocks.append(Paragraph(rejection_line(rejection)))
        blocks += _curves(rejection.guard.curves, _REJECTED)
    return blocks


def _curves(curves: LossCurves | None, title: str) -> list[Block]:
    if curves is None:
        return []
    compared = min(len(curves.baseline), len(curves.candidate))
    told = {
        name: series_of(name, _points(values[:compared]))
        for name, values in (
            ("baseline", curves.baseline),
            ("candidate", curves.candidate),
            (_LOWEST, curves.lowest),
            (_HIGHEST, curves.highest),
        )
    }
    series = [one for one in told.values() if one is not None]
    if not series:
        return []
    lines = [Line(one.name, one.points, dashed=one.name in (_LOWEST, _HIGHEST)) for one in series]
    ends = "; ".join(f"{one.name} ends at {number(one.points[-1][1])}" for one in series)
    told_ends = f"Of the {count(compared, 'step')} of both: {ends}."
    return [Picture(line_chart(title, lines, "step", from_zero=False), told_ends)]


def _points(values: Sequence[float | None]) -> list[tuple[float, float]]:
    """The steps, counted from 1, whose loss is known, with it."""
    return [(float(n), value) for n, value in enumerate(values, 1) if value is not None]
