"""The first section of a run: the outcome in one sentence, the settings, the figures."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from gpurun.formatting.knob_text import knobs_text
from gpurun.formatting.number_text import (
    byte_size,
    count,
    duration,
    if_known,
    joules,
    milliseconds,
    number,
    percent,
    times,
)
from gpurun.records.result import ENDED_WELL, RunResult
from gpurun.records.scaling import ScalingReport
from gpurun.records.tuning import APPLICABLE, TuningReport
from gpurun.report.comparison_text import verdict_line
from gpurun.report.ladder import WITHOUT_TRIALS, spent_sentence, stage_name
from gpurun.report.page.page_blocks import Block, Bullets, Code, Paragraph, Section, Table
from gpurun.report.page.run_contents import RunContents
from gpurun.report.run_summary_text import UTILIZATION_SOURCES
from gpurun.report.scaling_text import title as scaling_title
from gpurun.report.terminal_table import Column, Grid
from gpurun.report.tuning_verdict import larger_batch_sentences, remarks, verdict_sentence
from gpurun.stats.descriptive import says_nothing

OF_WHOLE_RUNS = ("whole run", "last loss")
"""Trials end after some steps, not all after the same: these figures say nothing of them."""


def figure_grid(launches: Sequence[tuple[str, RunResult]], *, trials: bool = False) -> Grid:
    """Figures that at least one of the launches has. `trials`: they are trials of a tuning."""
    columns = (Column(""), *(Column(name, right=True) for name, _ in launches))
    rows = []
    for name, figure in FIGURES:
        if trials and name in OF_WHOLE_RUNS:
            continue
        cells = [figure(result) for _, result in launches]
        if any(cells):
            rows.append((name, *cells))
    return Grid(columns, tuple(rows))


def _status(result: RunResult) -> str:
    if result.status in ENDED_WELL:
        return ""
    return "end not known" if result.status == "crashed" else result.status


def _whole_or_not(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else number(value)


def _step(result: RunResult) -> str:
    return if_known(milliseconds, result.step_time_ms.mean if result.step_time_ms else None)


def _spread(result: RunResult) -> str:
    times = result.step_time_ms
    return "" if times is None else " / ".join(map(number, (times.p50, times.p95, times.p99)))


def _activity(result: RunResult) -> str:
    value = result.gpu_utilization_percent
    if value is None:
        return ""
    source = UTILIZATION_SOURCES.get(result.gpu_utilization_source or "", "")
    return f"{value:.0f} %{f' ({source})' if source else ''}"


def _watts(result: RunResult) -> str:
    told = [device.power_watts for device in result.devices if device.power_watts is not None]
    return f"{number(sum(told))} W" if told else ""


def _devices(result: RunResult) -> str:
    names = [device.device for device in result.devices]
    return ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))


FIGURES: tuple[tuple[str, Callable[[RunResult], str]], ...] = (
    ("status", _status),
    ("devices", _devices),
    ("samples/s", lambda r: if_known(number, r.samples_per_second)),
    ("tokens/s", lambda r: if_known(number, r.tokens_per_second)),
    ("mean step", _step),
    ("step p50 / p95 / p99, ms", _spread),
    ("epoch", lambda r: if_known(duration, r.epoch_seconds)),
    ("batch size", lambda r: if_known(_whole_or_not, r.batch_size)),
    ("measured steps", lambda r: f"{r.measured_steps:,}" if r.measured_steps else ""),
    ("ranks", lambda r: str(r.ranks) if r.ranks > 1 else ""),
    ("GPU activity", _activity),
    ("peak memory", lambda r: if_known(byte_size, r.peak_memory_bytes)),
    ("of the device's memory", lambda r: if_known(percent, r.memory_share)),
    ("model FLOPs utilisation", lambda r: if_known(percent, r.mfu)),
    ("power", _watts),
    ("energy a sample", lambda r: if_known(joules, r.joules_per_sample)),
    ("samples a joule", lambda r: number(1 / r.joules_per_sample) if r.joules_per_sample else ""),
    ("start to steady pace", lambda r: if_known(duration, r.startup_seconds)),
    ("whole run", lambda r: if_known(duration, r.wall_seconds or None)),
    (
        "checkpoints",
        lambda r: (
            f"{count(r.checkpoint_saves, 'save')}, {duration(r.checkpoint_seconds or 0.0)}"
            if r.checkpoint_saves
            else ""
        ),
    ),
    ("last loss", lambda r: if_known(number, r.final_loss)),
)
"""The name of each figure, and its text; "" where it was not measured."""


def headline_section(contents: RunContents, cost: str | None) -> Section:
    """What happened, how sure that is, and what was measured. `cost`: of the training."""
    blocks: list[Block] = []
    if contents.tuning is not None:
        blocks += _of_tuning(contents.tuning)
    if contents.comparison is not None:
        blocks.append(Paragraph(verdict_line(contents.comparison), strong=True))
    if contents.scaling is not None:
        blocks += _of_scaling(contents.scaling)
    if contents.tuning is None and contents.recordings:
        blocks += _of_run(contents.recordings[-1].result)
    after = [Paragraph(cost, strong=True)] if cost else []
    command = [Code("Command", shlex.join(contents.command))] if contents.command else []
    blocks[1:1] = [*after, *command]
    launches = [(r.label or "the run", r.result) for r in contents.recordings if r.result]
    if launches:
        blocks.append(Table(figure_grid(launches, trials=contents.tuning is not None)))
    if contents.tuning is not None and any(r.folder for r in contents.recordings):
        trials = ", ".join(f"{r.label}: {r.folder}" for r in contents.recordings if r.folder)
        means = "Speed, step, memory and GPU activity are means over all launches of a side."
        blocks.append(Paragraph(f"{means} The other figures are of one trial each ({trials})."))
    return Section("Summary", tuple(blocks))


def _of_tuning(report: TuningReport) -> list[Block]:
    blocks: list[Block] = [Paragraph(verdict_sentence(report), strong=True)]
    if report.chosen is not None and report.chosen.knobs:
        changes = tuple(
            f"{stage_name(row).removeprefix('+ ')}: {knobs_text(row.changes)} ({row.effect})"
            for row in report.ladder
            if row.kept and row.changes
        )
        blocks += [Paragraph("Changed, with the effect:"), Bullets(changes)]
    told = [*remarks(report), *(line.strip() for line in larger_batch_sentences(report))]
    if told:
        blocks += [Paragraph("Also measured:"), Bullets(tuple(told))]
    if report.verdict in APPLICABLE and report.invocation:
        blocks.append(Code(WITHOUT_TRIALS.capitalize(), shlex.join(report.invocation)))
    return [*blocks, Paragraph(f"{spent_sentence(report)}.")]


def _of_scaling(report: ScalingReport) -> list[Block]:
    """The largest count that was measured against the smallest."""
    measured = [p for p in report.points if p.speedup is not None and p.efficiency is not None]
    blocks: list[Block] = []
    if len(measured) > 1:
        first, last = measured[0], measured[-1]
        assert last.speedup is not None
        assert last.efficiency is not None
        bounds = last.efficiency_confidence_interval
        within = ""
        if bounds is not None and not says_nothing(bounds):
            within = f" (95 % interval {percent(bounds[0])} to {percent(bounds[1])})"
        whole = (
            f"{count(last.gpus, 'device')}: {times(last.speedup)} the throughput of {first.gpus}"
        )
        said = f"{whole}, efficiency {percent(last.efficiency)}{within}"
        blocks.append(Paragraph(said, strong=True))
    return [*blocks, Paragraph(scaling_title(report))]


def _of_run(result: RunResult | None) -> list[Block]:
    if result is None:
        return [Paragraph("No result was recorded.", strong=True)]
    parts = []
    if result.samples_per_second is not None:
        parts.append(f"{number(result.samples_per_second)} samples/s")
    if result.step_time_ms is not None:
        name = "latency" if result.clock == "forward" else "step"
        parts.append(f"{name} {milliseconds(result.step_time_ms.mean)}")
    if result.gpu_utilization_percent is not None:
        parts.append(f"GPU activity {result.gpu_utilization_percent:.0f} %")
    if result.clock is None:
        parts.append("No training was seen")
    if result.status == "crashed":
        parts.append("how the script ended is not known")
    elif result.status not in ENDED_WELL:
        code = "" if result.exit_code is None else f" (exit code {result.exit_code})"
        parts.append(f"the script {result.status}{code}")
    blocks: list[Block] = [Paragraph(", ".join(parts), strong=True)] if parts else []
    notes = (*result.notes, *(f"hook switched off: {error}" for error in result.hook_errors))
    return [*blocks, Bullets(notes)] if notes else blocks
