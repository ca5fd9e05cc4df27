"""The first section of a run: the outcome in one sentence, the settings, the figures."""

from __future__ import annotations

import shlex

from gpurun.formatting.knob_text import knobs_text
from gpurun.formatting.number_text import count, milliseconds, number, percent, times
from gpurun.records.result import ENDED_WELL, RunResult
from gpurun.records.scaling import ScalingReport
from gpurun.records.tuning import APPLICABLE, TuningReport
from gpurun.report.comparison_text import verdict_line
from gpurun.report.ladder import WITHOUT_TRIALS, spent_sentence, stage_name
from gpurun.report.page.figure_table import figure_grid
from gpurun.report.page.page_blocks import Block, Bullets, Code, Paragraph, Section, Table
from gpurun.report.page.run_contents import RunContents
from gpurun.report.scaling_text import title as scaling_title
from gpurun.report.tuning_verdict import larger_batch_sentences, remarks, verdict_sentence
from gpurun.stats.intervals import says_nothing


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
