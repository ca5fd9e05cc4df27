"""Trends of benchmarks as a table with small charts, and plain lines."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.bench.trees.git import short
from gpurun.formatting.number_text import (
    byte_size,
    count,
    joules,
    milliseconds,
    number,
    signed_percent,
)
from gpurun.formatting.one_line import one_line
from gpurun.records.bench.benchmark import utc_moment
from gpurun.records.bench.history import (
    History,
    HistoryChange,
    HistoryReference,
    ReferenceKind,
    Trend,
)
from gpurun.report.comparison_text import NAMES
from gpurun.report.terminal_table import Column, Grid, sparklines

SPARK_WIDTH = 24
LEAST_SPAN = 0.05
"""A chart spans 5 % of the value at least, so that noise does not look like a mountain range."""
REFERENCES = {
    ReferenceKind.ACCEPTED: "accepted",
    ReferenceKind.PREVIOUS_LEVEL: "the level up to",
    ReferenceKind.USUAL_LEVEL: "the usual level up to",
}
DIRTY = "*"


def title(history: History) -> str:
    """The title of the table."""
    better = "higher" if any(t.higher_is_better for t in history.trends) else "lower"
    branch = "" if history.branch is None else f" on {history.branch}"
    return f"{NAMES.get(history.metric, history.metric)}{branch} ({better} is better)"


def history_grid(history: History) -> Grid:
    """One row a trend. A narrow terminal first loses columns that do not tell rows apart."""
    names = [trend.benchmark for trend in history.trends]
    told_apart = len(set(names)) == len(names)
    columns = (
        Column("benchmark"),
        Column("measured on", dropped=2 if told_apart else 3),
        Column("records", right=True, dropped=1),
        Column("trend", dropped=3 if told_apart else 2),
        Column("newest", right=True),
        Column("change"),
    )
    labels = conditions(history.trends)
    rows = [_row(trend, label) for trend, label in zip(history.trends, labels, strict=True)]
    return Grid(columns, tuple(rows))


def history_lines(history: History) -> list[str]:
    """The changes of level, newest first, and what else is to be said."""
    lines = []
    labels = conditions(history.trends)
    for trend, label in zip(history.trends, labels, strict=True):
        several = len(history.trends) > 1
        where = f"{trend.benchmark} ({label}): " if several else ""
        lines += [f"{where}{line}" for line in drift_lines(trend)]
        lines += [f"{where}{change_line(change)}" for change in reversed(trend.changes)]
        lines += [f"{where}{line}" for line in accepted_lines(trend)]
    if not any(trend.changes or trend.drift for trend in history.trends):
        lines.insert(0, "neither a change of level nor a drift is found")
    if any(point.dirty for trend in history.trends for point in trend.points):
        lines.append(f"{DIRTY} of a tree with uncommitted changes, which counts for no level")
    if history.unmeasured:
        lines.append(f"{count(history.unmeasured, 'record')} left out: nothing was measured")
    if history.elsewhere:
        lines.append(f"{count(history.elsewhere, 'record')} left out: of other branches (--branch)")
    return [*lines, *history.notes]


def drift_lines(trend: Trend) -> list[str]:
    """The change that is spread over all records; nothing if there is none."""
    drift = trend.drift
    if drift is None:
        return []
    low, high = drift.change_confidence_interval
    size = f"{signed_percent(drift.change)} ({signed_percent(low)} to {signed_percent(high)})"
    records, each = count(len(trend.points), "record"), signed_percent(drift.change_per_point)
    return [f"{drift.direction} {size} by a drift over {records}: {each} a record"]


def accepted_lines(trend: Trend) -> list[str]:
    """The accepted baselines, by whom and why; nothing if there are none."""
    accepted = trend.reference
    if accepted is None or accepted.kind is not ReferenceKind.ACCEPTED:
        return []
    commit = "a record" if accepted.commit is None else short(accepted.commit)
    when = "" if accepted.time is None else f" {day(accepted.time)}"
    reason = f": {one_line(accepted.reason, 60)}" if accepted.reason else ""
    return [f"accepted {commit} by {one_line(accepted.accepted_by or 'unknown')}{when}{reason}"]


def change_line(change: HistoryChange) -> str:
    """One change: what, how much, since when."""
    low, high = change.change_confidence_interval
    size = f"{signed_percent(change.change)} ({signed_percent(low)} to {signed_percent(high)})"
    subject = "" if change.subject is None else f": {one_line(change.subject, 60)}"
    return f"{change.direction} {size} with {_commits(change)} {day(change.time)}{subject}"


def conditions(trends: Sequence[Trend]) -> list[str]:
    """The machine of each trend: the device, and the differences from other trends.

    Trends of other benchmarks and devices do not matter: their names differ.
    """
    labels = []
    for trend in trends:
        others = [t for t in trends if _alike(t, trend) and t is not trend]
        parts = [_device(trend)]
        for name, value in _circumstances(trend).items():
            if any(_circumstances(other).get(name) != value for other in others):
                parts.append(value)
        labels.append(one_line(", ".join(filter(None, parts))))
    return labels


def shown(value: float, unit: str) -> str:
    """A figure with its unit."""
    if unit == "bytes":
        return byte_size(value)
    if unit == "s":
        return milliseconds(1000 * value)
    if unit.startswith("J"):
        return f"{joules(value)}{' a sample' if unit == 'J/sample' else ''}"
    return f"{number(value)} {unit}"


def day(time: str) -> str:
    """The date of a record's time; a text that is no time stays as it is."""
    try:
        return f"{utc_moment(time):%Y-%m-%d}"
    except ValueError:
        return one_line(time)


def reference_text(reference: HistoryReference) -> str:
    """The reference of a change, in words."""
    if reference.commit is None:
        return REFERENCES[reference.kind].removesuffix(" up to")
    return f"{REFERENCES[reference.kind]} {short(reference.commit)}"


def _row(trend: Trend, label: str) -> tuple[str, ...]:
    newest = trend.points[-1]
    values = [point.value for point in trend.points]
    dirty = sum(bool(point.dirty) for point in trend.points)
    change = ""
    if trend.change is not None and trend.reference is not None:
        change = f"{signed_percent(trend.change)} against {reference_text(trend.reference)}"
    return (
        one_line(trend.benchmark),
        label,
        f"{len(values)} ({dirty}{DIRTY})" if dirty else str(len(values)),
        spark(values),
        f"{shown(newest.value, trend.unit)}{DIRTY if newest.dirty else ''}",
        change,
    )


def spark(values: Sequence[float]) -> str:
    """A small chart of the values."""
    middle = sum(values) / len(values)
    span = [middle * (1 - LEAST_SPAN / 2), middle * (1 + LEAST_SPAN / 2)]
    return sparklines([values, span], SPARK_WIDTH)[0]


def _commits(change: HistoryChange) -> str:
    """The commit, and which others it may have been."""
    if change.commit is None:
        return "a record of"
    others = []
    if change.earliest and change.latest and change.earliest != change.latest:
        others.append(f"another from {short(change.earliest)} to {short(change.latest)}")
    if change.unmeasured:
        before = "the one before it" if change.unmeasured == 1 else f"{change.unmeasured} before it"
        others.append(f"{before}, not measured")
    maybe = f" (or {', or '.join(others)})" if others else ""
    return f"{short(change.commit)}{maybe}"


def _alike(one: Trend, other: Trend) -> bool:
    return (one.benchmark, _device(one)) == (other.benchmark, _device(other))


def _device(trend: Trend) -> str:
    fingerprint = trend.fingerprint
    device = fingerprint.device or "unknown"
    if fingerprint.driver is None or (fingerprint.device_count or 1) == 1:
        return device  # of a processor the number of cores is none of devices
    return f"{fingerprint.device_count} × {device}"


def _circumstances(trend: Trend) -> dict[str, str]:
    found = trend.fingerprint
    named = {
        "count": "" if found.device_count is None else count(found.device_count, "device"),
        "torch": f"torch {found.torch}",
        "driver": f"driver {found.driver}",
        "script": found.script,
        "args": " ".join(trend.args) or "no arguments",
        "batch": "" if trend.batch_size is None else f"batch {trend.batch_size:g}",
        "parameters": "" if trend.parameters is None else f"{trend.parameters:,} parameters",
        "unit": trend.unit,
    }
    return {**named, **{k: f"{k}={v}" for k, v in sorted(found.settings.items())}}
