"""What a comparison found, in plain lines and as Markdown with the verdict first."""

from __future__ import annotations

from collections.abc import Callable

from gpurun.bench.trees.git import short
from gpurun.records.comparison import ComparedSide, Comparison, MetricComparison
from gpurun.report.format import (
    byte_size,
    count,
    duration,
    joules,
    milliseconds,
    number,
    one_line,
    p_value,
    percent,
    signed_percent,
)
from gpurun.report.markdown import escaped, table
from gpurun.report.tables import Column, Grid

TITLES = {
    "pass": "PASS",
    "regression": "REGRESSION",
    "inconclusive": "INCONCLUSIVE",
    "failed": "FAILED",
    "interrupted": "INTERRUPTED",
}
NAMES = {
    "throughput": "throughput",
    "step_time": "step time",
    "peak_memory": "peak memory",
    "energy": "energy",
}
GROWS = ("peak_memory", "energy")


def verdict_line(found: Comparison) -> str:
    """The verdict with its grounds, in one line."""
    title = f"{TITLES[found.verdict]} {found.benchmark}"
    if found.error is not None:
        return f"{title}: {one_line(found.error)}"
    grounds = [metric_line(metric) for metric in found.metrics if metric.slowdown is not None]
    return f"{title}: {'; '.join(grounds or ['undecided'])} ({count(found.pairs, 'pair')})"


def metric_line(metric: MetricComparison) -> str:
    """How one metric changed, its interval, and what was allowed."""
    assert metric.slowdown is not None
    grows = metric.metric in GROWS
    sign = 1 if grows else -1
    text = f"{NAMES[metric.metric]} {signed_percent(sign * metric.slowdown)}"
    if metric.metric == "step_time":
        text = f"speed by step time {signed_percent(-metric.slowdown)}"
    bounds = metric.slowdown_confidence_interval
    inside = []
    if bounds is not None:
        low, high = sorted(sign * bound for bound in bounds)
        inside.append(f"interval {signed_percent(low)} to {signed_percent(high)}")
    inside.append(f"allowed {signed_percent(sign * metric.threshold)}")
    if metric.verdict == "regression" and metric.p_value is not None:
        inside.append(p_value(metric.p_value))
    return f"{text} ({', '.join(inside)})"


def comparison_lines(found: Comparison) -> list[str]:
    """The closing report."""
    grid = _grid(found)
    lines = [f"  {line}" for line in grid.lines()] if grid.rows else []
    lines.append(verdict_line(found))
    if found.verdict != "pass":
        lines.append(one_line(found.recommendation))
    return lines


def comparison_markdown(found: Comparison) -> str:
    """A section of Markdown: the verdict, the table, and what else is to be said."""
    parts = [f"### gpurun bench: {escaped(verdict_line(found))}"]
    grid = _grid(found)
    if grid.rows:
        parts.append(table(grid))
    if found.verdict != "pass":
        parts.append(escaped(one_line(found.recommendation)))
    parts += [f"- {escaped(one_line(note))}" for note in found.notes]
    sides = f"baseline `{_commit(found.baseline)}`, current `{_commit(found.current)}`"
    parts.append(f"{sides}, {count(found.pairs, 'pair')} in {duration(found.seconds)}")
    sections = ["\n\n".join(parts) + "\n", *map(comparison_markdown, found.others)]
    return "\n".join(sections)


def _grid(found: Comparison) -> Grid:
    """Every figure that both sides have."""
    columns = (
        Column("figure"),
        Column(found.baseline.label or "baseline", right=True),
        Column(found.current.label or "current", right=True),
        Column("change", right=True),
    )
    one, other = found.baseline, found.current
    rows = [
        _row("samples/s", one.samples_per_second, other.samples_per_second, number),
        _row("step time", _step(one), _step(other), milliseconds),
        _row("GPU", one.gpu_utilization_percent, other.gpu_utilization_percent, _share),
        _row("peak memory", one.peak_memory_bytes, other.peak_memory_bytes, byte_size),
        _row("energy a sample", one.joules_per_sample, other.joules_per_sample, joules),
    ]
    return Grid(columns, tuple(row for row in rows if row is not None))


def _row(
    name: str, before: float | None, now: float | None, shown: Callable[[float], str]
) -> tuple[str, ...] | None:
    if before is None or now is None:
        return None
    change = signed_percent(now / before - 1) if before else ""
    return name, shown(before), shown(now), change


def _step(side: ComparedSide) -> float | None:
    return None if side.step_time_ms is None else side.step_time_ms.mean


def _share(value: float) -> str:
    return percent(value / 100)


def _commit(side: ComparedSide) -> str:
    if side.label is not None:
        return side.label
    if side.commit is None:
        return "unknown"
    return f"{short(side.commit)}{' with changes' if side.dirty else ''}"
