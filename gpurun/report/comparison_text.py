"""The result of a comparison as plain lines and as Markdown, the verdict first."""

from __future__ import annotations

from collections.abc import Callable

from gpurun.bench.trees.git import short
from gpurun.formatting.number_text import (
    byte_size,
    change_interval,
    count,
    duration,
    interval,
    joules,
    milliseconds,
    number,
    p_value,
    percent,
    signed_percent,
    times,
)
from gpurun.formatting.one_line import one_line
from gpurun.records.bench.comparison import ComparedSide, Comparison, MetricComparison
from gpurun.report.page.markdown_page import escaped, table
from gpurun.report.terminal_table import Column, Grid
from gpurun.stats.descriptive import says_nothing

TITLES = {
    "pass": "PASS",
    "regression": "REGRESSION",
    "inconclusive": "INCONCLUSIVE",
    "training_differs": "TRAINING DIFFERS",
    "failed": "FAILED",
    "interrupted": "INTERRUPTED",
}
NAMES = {
    "throughput": "throughput",
    "step_time": "step time",
    "peak_memory": "peak memory",
    "energy": "energy",
    "gpu_utilization": "GPU utilization",
}
MARKER = "<!-- gpurun:benchmark -->"
"""The first line of the Markdown, by which a pipeline finds its earlier comment to replace it."""
GROWS = ("peak_memory", "energy")


def verdict_line(found: Comparison) -> str:
    """The verdict with its grounds, in one line."""
    return _headline(found, metric_line)


def metric_line(metric: MetricComparison) -> str:
    """The change of one metric, its interval and its threshold."""
    bounds = _bounds(metric)
    inside = [f"interval {bounds}"] if bounds else []
    inside.append(f"allowed {_allowed(metric)}")
    inside += _proof(metric)
    return f"{_changed(metric)} ({', '.join(inside)})"


def _headline(found: Comparison, told: Callable[[MetricComparison], str]) -> str:
    title = f"{TITLES.get(found.verdict, found.verdict)} {found.benchmark}"
    if found.error is not None:
        return f"{title}: {one_line(found.error)}"
    if not found.launched:
        return f"{title}: no file that the benchmark opens has changed (nothing was launched)"
    grounds = [told(metric) for metric in found.metrics if metric.slowdown is not None]
    training = found.training
    if training is not None and training.nonfinite_from_step is not None:
        grounds.insert(0, training.told)
    return f"{title}: {'; '.join(grounds or ['undecided'])} ({_ground(found)})"


def _changed(metric: MetricComparison) -> str:
    return f"{_name(metric)} {_change(metric)}"


def _name(metric: MetricComparison) -> str:
    if metric.metric == "step_time":
        return "speed by step time"
    return NAMES.get(metric.metric, metric.metric)


def _sign(metric: MetricComparison) -> int:
    """A loss is shown as growth, or as what is lost."""
    return 1 if metric.metric in GROWS else -1


def _change(metric: MetricComparison) -> str:
    assert metric.slowdown is not None
    return signed_percent(_sign(metric) * metric.slowdown)


def _allowed(metric: MetricComparison) -> str:
    return signed_percent(_sign(metric) * metric.threshold)


def _bounds(metric: MetricComparison) -> str | None:
    if metric.slowdown_confidence_interval is None:
        return None
    low, high = sorted(_sign(metric) * bound for bound in metric.slowdown_confidence_interval)
    return change_interval(low, high)


def comparison_lines(found: Comparison) -> list[str]:
    """The closing report."""
    grid = figures_grid(found)
    lines = [f"  {line}" for line in grid.lines()] if grid.rows else []
    lines += method_lines(found)
    if (training := training_line(found)) is not None:
        lines.append(training)
    lines += settings_lines(found)
    lines.append(verdict_line(found))
    if found.verdict != "pass":
        lines.append(one_line(found.recommendation))
    return lines


def method_lines(found: Comparison) -> list[str]:
    """Why pairs were no live ones; what their interval takes for granted where they were."""
    method = found.method
    if method is None or found.error is not None:
        return []
    lines = []
    if not method.live and (why := method.why_in_turn):
        lines.append(one_line(f"launches one after the other, not live pairs: {why}"))
    if method.prior_sd is None or method.pair_sd is None:
        return lines
    what = "live pairs" if method.live else "pairs"
    return [
        *lines,
        f"{what} of one tree differ by {percent(method.prior_sd)} (standard deviation, "
        f"assumed; counts as 1 pair), these by "
        f"{percent(method.pair_sd)}",
    ]


def training_line(found: Comparison) -> str | None:
    """A line about the loss curves, a warning if they differ; None if the comparison is
    incomplete."""
    if found.training is None or found.error is not None:
        return None
    told = one_line(found.training.told)
    return f"warning: {told}" if found.training.differs else told


def settings_lines(found: Comparison) -> list[str]:
    """The second of two settings over the first, and the memory that it saves."""
    if found.speedup is None or found.error is not None:
        return []
    bounds = found.speedup_confidence_interval
    grounds = [] if bounds is None or says_nothing(bounds) else [interval(bounds) or ""]
    if found.statistically_significant is not None:
        grounds.append("significant" if found.statistically_significant else "not significant")
    inside = f" ({', '.join(grounds)})" if grounds else ""
    saved, memory = found.memory_saved_bytes, ""
    if saved:
        memory = f", peak memory {byte_size(abs(saved))} {'lower' if saved > 0 else 'higher'}"
    sides = f"{found.current.label} against {found.baseline.label}"
    return [f"{sides}: {times(found.speedup)} the speed{inside}{memory}"]


def comparison_markdown(found: Comparison) -> str:
    """For a comment or the page of a job: a section for each benchmark, the worst first."""
    return "\n".join([MARKER, *map(_section, (found, *found.others))])


def _section(found: Comparison) -> str:
    """The verdict, the table, and what else is to be said."""
    parts = [f"### gpurun bench: {escaped(_headline(found, _changed))}"]
    parts += [table(grid) for grid in (gated_grid(found), figures_grid(found)) if grid.rows]
    if found.verdict != "pass":
        parts.append(escaped(one_line(found.recommendation)))
    if (training := training_line(found)) is not None:
        differs = found.training is not None and found.training.differs
        parts.append(f"**{escaped(training)}**" if differs else escaped(training))
    parts += [escaped(line) for line in settings_lines(found)]
    parts += [f"- {escaped(line)}" for line in method_lines(found)]
    parts += [f"- {escaped(one_line(note))}" for note in found.notes]
    sides = f"baseline `{_commit(found.baseline)}`, current `{_commit(found.current)}`"
    parts.append(f"{sides}, {_ground(found)} in {duration(found.seconds)}")
    return "\n\n".join(parts) + "\n"


def _proof(metric: MetricComparison) -> list[str]:
    if metric.verdict != "regression" or metric.p_value is None:
        return []
    return [p_value(metric.p_value)]


def gated_grid(found: Comparison) -> Grid:
    """The judged metrics and their thresholds; nothing if the comparison did not come to its
    end."""
    columns = (
        Column("gated"),
        Column("change", right=True),
        Column("interval", right=True),
        Column("allowed", right=True),
        Column("verdict"),
    )
    judged = [] if found.error is not None else found.metrics
    rows = [
        (_name(m), _change(m), _bounds(m) or "", _allowed(m), ", ".join([m.verdict, *_proof(m)]))
        for m in judged
        if m.slowdown is not None
    ]
    return Grid(columns, tuple(rows))


def figures_grid(found: Comparison) -> Grid:
    """Every figure that both sides have; those of half a comparison would read like a finding.

    For live pairs, the current speed is the baseline's times the ratio that the turns measured,
    because the 2 s of each side alone drift with the machine.
    """
    columns = (
        Column("figure"),
        Column(found.baseline.label or "baseline", right=True),
        Column(found.current.label or "current", right=True),
        Column("change", right=True),
    )
    one, other = found.baseline, found.current
    rate, step = other.samples_per_second, _step(other)
    if found.method is not None and found.method.live and found.slowdown is not None:
        rate = _times(one.samples_per_second, 1 - found.slowdown)
        step = _times(_step(one), _batch_growth(found) / (1 - found.slowdown))
    rows = [
        _row("samples/s", one.samples_per_second, rate, number),
        _row("step time", _step(one), step, milliseconds),
        _row("GPU", one.gpu_utilization_percent, other.gpu_utilization_percent, _share),
        _row("peak memory", one.peak_memory_bytes, other.peak_memory_bytes, byte_size),
        _row("energy a sample", one.joules_per_sample, other.joules_per_sample, joules),
    ]
    known = rows if found.error is None else []
    return Grid(columns, tuple(row for row in known if row is not None))


def _row(
    name: str, before: float | None, now: float | None, shown: Callable[[float], str]
) -> tuple[str, ...] | None:
    if before is None or now is None:
        return None
    change = signed_percent(now / before - 1) if before else ""
    return name, shown(before), shown(now), change


def _step(side: ComparedSide) -> float | None:
    return None if side.step_time_ms is None else side.step_time_ms.mean


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _batch_growth(found: Comparison) -> float:
    """A line about the current side's larger batches, if settings made them so."""
    before, now = found.baseline.batch_size, found.current.batch_size
    return now / before if before and now else 1.0


def _share(value: float) -> str:
    return percent(value / 100)


def _ground(found: Comparison) -> str:
    """The measurements behind the verdict."""
    if not found.launched:
        return "without a launch"
    if found.baseline_records is None:
        live = found.method is not None and found.method.live
        return count(found.pairs, "live pair" if live else "pair")
    return f"against {count(found.baseline_records, 'record')}"


def _commit(side: ComparedSide) -> str:
    if side.label is not None:
        return side.label
    if side.commit is None:
        return "unknown"
    return f"{short(side.commit)}{' with changes' if side.dirty else ''}"
