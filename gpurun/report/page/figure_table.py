"""The figures of launches side by side: a row a figure, a column a launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpurun.formatting.number_text import (
    byte_size,
    count,
    duration,
    joules,
    milliseconds,
    number,
    percent,
)
from gpurun.records.result import ENDED_WELL, RunResult
from gpurun.report.run_summary_text import UTILIZATION_SOURCES
from gpurun.report.terminal_table import Column, Grid

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


def _shown(show: Callable[[float], str], value: float | None) -> str:
    return "" if value is None else show(value)


def _step(result: RunResult) -> str:
    return _shown(milliseconds, result.step_time_ms.mean if result.step_time_ms else None)


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
    ("samples/s", lambda r: _shown(number, r.samples_per_second)),
    ("tokens/s", lambda r: _shown(number, r.tokens_per_second)),
    ("mean step", _step),
    ("step p50 / p95 / p99, ms", _spread),
    ("epoch", lambda r: _shown(duration, r.epoch_seconds)),
    ("batch size", lambda r: _shown(_whole_or_not, r.batch_size)),
    ("measured steps", lambda r: f"{r.measured_steps:,}" if r.measured_steps else ""),
    ("ranks", lambda r: str(r.ranks) if r.ranks > 1 else ""),
    ("GPU activity", _activity),
    ("peak memory", lambda r: _shown(byte_size, r.peak_memory_bytes)),
    ("of the device's memory", lambda r: _shown(percent, r.memory_share)),
    ("model FLOPs utilisation", lambda r: _shown(percent, r.mfu)),
    ("power", _watts),
    ("energy a sample", lambda r: _shown(joules, r.joules_per_sample)),
    ("samples a joule", lambda r: number(1 / r.joules_per_sample) if r.joules_per_sample else ""),
    ("start to steady pace", lambda r: _shown(duration, r.startup_seconds)),
    ("whole run", lambda r: _shown(duration, r.wall_seconds or None)),
    (
        "checkpoints",
        lambda r: (
            f"{count(r.checkpoint_saves, 'save')}, {duration(r.checkpoint_seconds or 0.0)}"
            if r.checkpoint_saves
            else ""
        ),
    ),
    ("last loss", lambda r: _shown(number, r.final_loss)),
)
"""The name of each figure, and its text; "" where it was not measured."""
