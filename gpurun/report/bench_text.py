"""Results of `bench`, `bench bisect` and `bench selftest` as lines; a bisection as Markdown."""

from __future__ import annotations

from gpurun.bench.gate_selftest import PLANS
from gpurun.bench.trees.git import short
from gpurun.formatting.number_text import (
    byte_size,
    change_interval,
    count,
    duration,
    joules,
    milliseconds,
    number,
    percent,
    signed_percent,
)
from gpurun.formatting.one_line import one_line
from gpurun.measure.optional_figures import known
from gpurun.records.bench.benchmark import BenchmarkRecord
from gpurun.records.bench.bisection import BisectedCommit, BisectionReport
from gpurun.records.bench.comparison import Selftest, SelftestPart
from gpurun.report.page.markdown_page import escaped
from gpurun.report.terminal_table import Column, Grid


def record_lines(record: BenchmarkRecord) -> list[str]:
    """The figures, and the spread of the launches."""
    launches = [launch for launch in record.launches if launch.error is None]
    parts = []
    rates = known(launch.samples_per_second for launch in launches)
    if record.samples_per_second is not None:
        span = f" ({number(min(rates))} to {number(max(rates))})" if len(rates) > 1 else ""
        parts.append(f"{number(record.samples_per_second)} samples/s{span}")
    if record.step_time_ms is not None:
        times = record.step_time_ms
        parts.append(f"step {milliseconds(times.mean)} (p95 {milliseconds(times.p95)})")
    if record.gpu_utilization_percent is not None:
        parts.append(f"GPU {percent(record.gpu_utilization_percent / 100)}")
    if record.peak_memory_bytes is not None:
        parts.append(f"peak memory {byte_size(record.peak_memory_bytes)}")
    if record.joules_per_sample is not None:
        parts.append(f"{joules(record.joules_per_sample)} a sample")
    lines = []
    if parts:
        times_measured = f"measured {count(len(launches), 'time')}"
        lines.append(f"{record.benchmark}: {', '.join(parts)}, {times_measured}")
    if record.error is not None:
        lines.append(f"the benchmark {record.benchmark} failed: {one_line(record.error)}")
        if record.launches and record.launches[-1].run_dir is not None:
            lines.append(f"its whole output is in {record.launches[-1].run_dir}/output.log")
    return lines


TITLES = {
    "found": "FOUND",
    "narrowed": "NARROWED DOWN",
    "no_drop": "NO DROP FOUND",
    "inconclusive": "INCONCLUSIVE",
    "failed": "FAILED",
    "interrupted": "INTERRUPTED",
}
MOST_SHOWN = 6
"""Suspects that are listed."""


def verdict_line(found: BisectionReport) -> str:
    """The answer in one line."""
    title = f"{TITLES[found.verdict]} {found.benchmark}"
    if found.error is not None:
        return f"{title}: {one_line(found.error)}"
    pairs = count(len(found.pairs), "pair")
    if found.culprit is not None:
        return f"{title}: {_named(found.commit(found.culprit))} ({pairs})"
    if found.verdict == "no_drop":
        least = percent(found.smallest_slowdown)
        return f"{title}: {_ends(found)} loses less than {least} ({pairs})"
    if not found.pairs:
        return f"{title}: no pair was launched"
    suspects = count(len(found.suspects), "commit")
    return f"{title}: {suspects} may have brought the drop ({pairs})"


def bisection_lines(found: BisectionReport) -> list[str]:
    """The closing report."""
    lines = [verdict_line(found), *(f"  {line}" for line in _details(found))]
    return [*lines, one_line(found.recommendation)]


def bisection_markdown(found: BisectionReport) -> str:
    """A section of Markdown: the answer, its figures, and the commits that matter."""
    lines = "\n".join(f"- {escaped(line)}" for line in (*_details(found), *found.notes))
    parts = [f"### gpurun bench bisect: {escaped(verdict_line(found))}", lines]
    parts.append(escaped(one_line(found.recommendation)))
    sections = ["\n\n".join(filter(None, parts)) + "\n", *map(bisection_markdown, found.others)]
    return "\n".join(sections)


def _details(found: BisectionReport) -> list[str]:
    """What the culprit and the range lose, what it cost, and the commits that are left or were
    skipped."""
    lines = []
    before = "against its parent" if len(found.suspects) == 1 else "against the commit before them"
    changes = (
        (before, found.slowdown, found.slowdown_interval),
        (_ends(found), found.range_slowdown, found.range_slowdown_interval),
    )
    for what, lost, bounds in changes:
        if lost is not None and bounds is not None:
            bounds_text = change_interval(-bounds[1], -bounds[0])
            lines.append(f"throughput {signed_percent(-lost)} ({bounds_text}) {what}")
    if found.pairs:
        commits, pairs = count(len(found.commits), "commit"), count(len(found.pairs), "pair")
        lines.append(f"{commits}, {pairs} of launches in {duration(found.seconds)}")
    if found.culprit is None and found.pairs:
        lines += [f"suspect {_named(found.commit(one))}" for one in found.suspects[:MOST_SHOWN]]
        if len(found.suspects) > MOST_SHOWN:
            lines.append(f"and {len(found.suspects) - MOST_SHOWN} more")
    lines += [f"skipped {_named(one)}: {one_line(one.skipped or '')}" for one in found.skipped]
    return lines


def _named(one: BisectedCommit) -> str:
    merge = "merge " if one.merge else ""
    return f'{merge}{short(one.commit)} "{one_line(one.subject, 72)}" by {one_line(one.author)}'


def _ends(found: BisectionReport) -> str:
    line = found.line
    return f"{short(line[0].commit)}..{short(line[-1].commit)}" if line else "the range"


SAID = {plan.part: plan.said for plan in PLANS}
HEADS = ("HEAD with itself", "must be", "gate")
FIGURES = ("planted", "found", "interval", "pairs", "time")


def selftest_lines(found: Selftest) -> list[str]:
    """The closing report: a row a comparison, what is wrong, and the verdict."""
    columns = *map(Column, HEADS), *(Column(head, right=True) for head in FIGURES)
    rows = tuple(map(_row, found.parts))
    lines = [f"  {line}" for line in Grid(columns, rows).lines()] if rows else []
    lines += [f"{SAID[part.part]}: {part.wrong}" for part in found.parts if part.wrong is not None]
    lines.append(f"{found.verdict.upper()} selftest of {found.benchmark}: {_said(found)}")
    return lines if found.verdict == "pass" else [*lines, one_line(found.recommendation)]


def _said(found: Selftest) -> str:
    if found.error is not None:
        return one_line(found.error)
    if found.verdict == "pass":
        allowed = f"{percent(found.threshold or 0.0)} allowed"
        return f"the gate ({allowed}) goes red for a loss of twice as much, and only for that"
    if found.verdict == "wrong":
        return "the gate does not answer as it must"
    undecided = ", ".join(SAID[part.part] for part in found.parts if part.right is None)
    pairs = count(found.max_pairs, "pair")
    return f"undecided within {pairs}: {undecided}" if undecided else "not complete"


def _row(part: SelftestPart) -> tuple[str, ...]:
    found = part.comparison
    loss, bounds = found.slowdown, found.slowdown_confidence_interval
    return (
        SAID[part.part],
        part.expected,
        f"{part.answer or found.verdict}{' (wrong)' if part.right is False else ''}",
        signed_percent(-part.planted_slowdown) if part.planted_slowdown else "",
        "" if loss is None else signed_percent(-loss),
        "" if bounds is None else change_interval(-bounds[1], -bounds[0]),
        str(found.pairs),
        duration(found.seconds),
    )
