"""The report of `--optimize` as Markdown: what the terminal shows, with all trials."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from gpurun.formatting.knob_text import knobs_text
from gpurun.formatting.number_text import byte_size, duration, milliseconds, number
from gpurun.formatting.one_line import one_line
from gpurun.records.tuning import PROVEN, Proof, TrialRecord, TuningReport
from gpurun.report.ladder import (
    curve_lines,
    guard_lines,
    ladder_grid,
    rejection_line,
    rejections_on_the_way,
)
from gpurun.report.terminal_table import Column, Grid
from gpurun.report.tuning_verdict import larger_batch_sentences, remarks, verdict_sentence

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

_PAIR_COLUMNS = (
    Column("pair", right=True),
    Column("baseline", right=True),
    Column("candidate", right=True),
    Column("ratio", right=True),
)


def tuning_markdown(report: TuningReport) -> str:
    """A whole Markdown document."""
    parts = [f"# gpurun --optimize {_code(shlex.join(report.command))}".rstrip()]
    parts.append(f"**{escaped(verdict_sentence(report))}**")
    if report.chosen is not None and report.chosen.knobs:
        parts.append(f"Settings: {escaped(knobs_text(report.chosen.knobs))}")
    if report.ladder:
        parts += ["## Ladder", table(ladder_grid(report)), *_legend(report)]
    parts += _guard(report)
    parts += map(escaped, remarks(report))
    if report.larger_batch is not None:
        sentences = [escaped(line.strip()) for line in larger_batch_sentences(report)]
        parts += ["## Larger batch", _bullets(sentences)]
    if report.proof is not None and report.proof.pairs:
        memory = report.objective == "memory"
        compared = "peak memory" if memory else "samples/s"
        grid = _pairs_grid(report.proof, byte_size if memory else number)
        parts += ["## Proof", f"By {compared}:", table(grid)]
    if report.trials:
        parts += ["## Trials", table(trials_grid(report.trials))]
    if report.decisions:
        parts += ["## Decisions", _bullets([escaped(one_line(d)) for d in report.decisions])]
    parts.append(_footer(report))
    return "\n\n".join(part for part in parts if part) + "\n"


def _legend(report: TuningReport) -> list[str]:
    if report.verdict not in PROVEN:
        return []
    return [
        "The gain of a change compares all that is kept with the same settings without it. One "
        "live pair of launches measured it, so it may be off by some percent. Only the last row "
        "is proven."
    ]


def _guard(report: TuningReport) -> list[str]:
    objections = guard_lines(report.guard)
    told = [(line, report.guard) for line in objections[:1]]
    told += [(rejection_line(r), r.guard) for r in rejections_on_the_way(report)]
    parts = ["## Loss guard"] if told else []
    for line, guard in told:
        parts.append(escaped(line))
        if guard is not None and guard.curves is not None:
            parts.append("\n".join(["```text", *curve_lines(guard.curves), "```"]))
    return parts


def _pairs_grid(proof: Proof, shown: Callable[[float], str]) -> Grid:
    rows = tuple(
        (str(i), shown(base), shown(head), number(head / base) if base else "")
        for i, (base, head) in enumerate(proof.pairs, 1)
    )
    return Grid(_PAIR_COLUMNS, rows)


def trials_grid(trials: Sequence[TrialRecord]) -> Grid:
    """Every trial with its figures; columns in which nothing was measured are left out."""
    return Grid(_TRIAL_COLUMNS, tuple(_trial_row(t) for t in trials)).without_empty_columns()


def _trial_row(trial: TrialRecord) -> tuple[str, ...]:
    rate, memory, times = trial.samples_per_second, trial.peak_memory_bytes, trial.step_time_ms
    reason = one_line(trial.reason)
    return (
        str(trial.number),
        trial.purpose,
        knobs_text(trial.knobs),
        number(rate) if rate is not None else "",
        milliseconds(times.p50) if times is not None else "",
        byte_size(memory) if memory is not None else "",
        duration(trial.seconds),
        f"{trial.status}: {reason}" if reason else trial.status,
    )


def _footer(report: TuningReport) -> str:
    isolation = f", isolation: {escaped(report.isolation)}" if report.isolation else ""
    return f"Tuning took {duration(report.tuning_seconds)}{isolation}."


def table(grid: Grid) -> str:
    """A grid as a Markdown table."""
    heading = [column.heading for column in grid.columns]
    rule = ["--:" if column.right else ":--" for column in grid.columns]
    cells = [heading, rule, *([escaped(cell) for cell in row] for row in grid.rows)]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells)


def _bullets(items: Sequence[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def escaped(text: str) -> str:
    """Foreign text that must not become table cells, HTML or emphasis."""
    for character in "\\|<*_":
        text = text.replace(character, f"\\{character}")
    return text
