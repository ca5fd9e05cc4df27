"""Sections of a tuning: the ladder with its picture, the ceilings, the loss guard, the trials."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpurun.formatting.finding_sentence import ceiling_rates
from gpurun.formatting.knob_text import knobs_text
from gpurun.formatting.number_text import (
    byte_size,
    count,
    duration,
    factor,
    if_known,
    interval,
    milliseconds,
    number,
)
from gpurun.records.tuning import (
    PROVEN,
    Ceilings,
    LossCurves,
    TrialRecord,
    TuningReport,
)
from gpurun.report.ladder import (
    ALL,
    AS_IT_IS,
    NOT_KEPT,
    PROOF,
    batch_grid,
    ladder_grid,
    ladder_rows,
    not_kept,
    rejection_line,
    rejections_on_the_way,
)
from gpurun.report.page.charts import Bar, BarChart, Line, LineChart
from gpurun.report.page.page_blocks import Block, Bullets, Paragraph, Picture, Section, Table
from gpurun.report.page.recorded_series import series_of
from gpurun.report.page.run_contents import RunContents
from gpurun.report.terminal_table import Column, Grid
from gpurun.report.tuning_progress import outcome_text

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


GAINS = "Gain over the script as it is, by stage"
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
        if_known(number, rate),
        milliseconds(times.p50) if times is not None else "",
        if_known(byte_size, memory),
        duration(trial.seconds),
        outcome_text(trial) or trial.status,
    )


def _ladder(report: TuningReport) -> Section:
    blocks: list[Block] = []
    if picture := gains_picture(report):
        blocks.append(picture)
    if (grid := ladder_grid(report)).rows:
        blocks.append(Table(grid))
    if report.verdict in PROVEN:
        blocks.append(
            Paragraph("A row is what one launch says, with all changes above it. The proof counts.")
        )
    if (batches := batch_grid(report)).rows:
        blocks += [Paragraph("Batch sizes, each in one launch:"), Table(batches)]
    if others := not_kept(report):
        blocks += [Paragraph(NOT_KEPT.capitalize()), Bullets(tuple(others))]
    return Section("Ladder", tuple(blocks))


def gains_picture(report: TuningReport, run: str = "") -> Picture | None:
    """The rows whose gain over the script as it is was measured; None without a proven speedup.

    The proof is the bar of the last row that is kept.
    """
    if report.verdict != "faster":
        return None
    bars = []
    for name, row in ladder_rows(report):
        gain = 1.0 if row.stage == AS_IT_IS else row.speedup
        if gain is not None and name != PROOF:
            within = interval(row.speedup_confidence_interval)
            told = f"{factor(gain)}{f' ({within})' if within else ''}"
            bounds = row.speedup_confidence_interval if within else None
            bars.append(Bar(name, told, gain, bounds, strong=name.endswith(ALL)))
    if not bars:
        return None
    chart = BarChart(f"{GAINS}{f': {run}' if run else ''}", bars, mark=1.0)
    return Picture(chart, "The dashed mark is ×1.00. The table has the same figures.")


def ceilings_picture(ceilings: Ceilings) -> Picture | None:
    """The speed of loader, model and script as bars; None where neither side was measured."""
    bars = [Bar(name, f"{number(rate)} samples/s", rate) for name, rate in ceiling_rates(ceilings)]
    if not bars:
        return None
    sentence = "; ".join(f"{bar.name}: {bar.told}" for bar in bars)
    return Picture(BarChart("Each side of the training alone, as it is", bars), f"{sentence}.")


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
    return [Picture(LineChart(title, lines, "step", from_zero=False), told_ends)]


def _points(values: Sequence[float | None]) -> list[tuple[float, float]]:
    """The steps, counted from 1, whose loss is known, with it."""
    return [(float(n), value) for n, value in enumerate(values, 1) if value is not None]
