"""What only a whole run shows: memory that grows, and steps that are long every so often."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gpurun.diagnoses.api import NOTICEABLE, Seen, diagnosis, gain_without, measured, percent
from gpurun.diagnoses.evidence import Evidence, Source
from gpurun.formatting.number_text import byte_size, duration
from gpurun.measure.measured_window import Window
from gpurun.measure.memory_growth import grows_steadily, quarters
from gpurun.records.events import StepRow
from gpurun.records.finding import FindingType
from gpurun.timeline.columns import Indices, Times

FEWEST_SAMPLES = 16
"""Fewer samples of memory in the measured steps say nothing of its growth."""
LONG_ENOUGH = 30.0
"""Seconds: in a shorter time a script may only be filling its caches, and growth is a note."""
LONG = 1.5
"""A step that takes this many times the median is a long one."""
FEWEST_LONG, LEAST_PERIOD = 4, 4
"""So many long steps, so far apart, are a pattern."""
REGULAR = 0.8
"""The part of the distances between long steps that have to be alike."""
ADVICE_GROWTH = (
    "keep numbers, not tensors, of past steps: total += loss.item() or loss.detach()",
    "look for lists, caches and closures that hold batches or outputs; in worker processes data "
    "sets that keep what they read",
)
ADVICE_PERIOD = (
    "save, evaluate and log less often",
    "save in the background: torch.distributed.checkpoint.async_save, or a copy to the host that a "
    "thread writes",
)
ADVICE_EPOCH = (
    "keep worker processes from one epoch to the next: DataLoader(persistent_workers=True)",
    "evaluate and save once in several epochs",
)


@diagnosis(FindingType.MEMORY_GROWTH, Source.CPU_USE, Source.DEVICE, thresholds=("memory_growth",))
def memory_growth(evidence: Evidence) -> Seen | None:
    """Memory grows from step to step.

    Triggered, of a device or of the script's processes with their workers, by steady growth over
    the quarters of the measured steps, from the first to the last by more than 10 %; in less than
    half a minute a note. The report says how much a step adds, and on a device when it is full at
    this pace.
    """
    memories = list(_memories(evidence))
    if evidence.window is None or not evidence.window.measured_steps or not memories:
        return None
    steps = evidence.window.measured_steps
    where, held, free = max(memories, key=lambda each: growth(each[1]))
    share = growth(held)
    a_step = share * held[0] / steps
    text = f"memory of {where} grows by {byte_size(a_step)} a step"
    if free is not None and a_step > 0:
        text += f": it is full after {free / a_step:,.0f} more steps"
    severity = evidence.thresholds.severity("memory_growth", share)
    if (evidence.window.seconds or 0.0) < LONG_ENOUGH:
        severity = min(severity, NOTICEABLE)
    return Seen(
        text,
        measured(
            Source.CPU_USE if free is None else Source.DEVICE,
            memory_growth_share=share,
            bytes_per_step=round(a_step),
            measured_steps=steps,
        ),
        ADVICE_GROWTH,
        severity=severity,
    )


def _memories(evidence: Evidence) -> Iterator[tuple[str, Sequence[int], int | None]]:
    """Each memory's name, the bytes that it held over time, and those that are free at last."""
    host = [sample.rss_bytes for sample in evidence.host_samples]
    if host:
        yield "the script's processes", host, None
    for samples in evidence.of_each_device().values():
        held = [s.memory_used_bytes for s in samples if s.memory_used_bytes is not None]
        total = samples[-1].memory_total_bytes
        if held and total is not None:
            yield "the device", held, total - held[-1]


def growth(held: Sequence[int]) -> float:
    """By which part memory grew; 0 where it does not grow steadily, or few samples were seen."""
    if len(held) < FEWEST_SAMPLES:
        return 0.0
    levels = quarters([float(each) for each in held])
    return levels[-1] / levels[0] - 1 if grows_steadily(levels) else 0.0


@diagnosis(FindingType.PERIODIC_STEPS, Source.STEPS)
def periodic_steps(evidence: Evidence) -> Seen | None:
    """Every so many steps one takes much longer: it saves, evaluates or logs.

    Triggered by at least four steps of more than 1.5 times the median, alike distances apart. Waits
    for data do not count. The bound is all steps at the median. Time in `torch.save` is told where
    the script calls it.
    """
    result, pattern = evidence.result, long_steps(evidence.unprofiled or evidence.window)
    if result is None or result.clock != "optimizer" or pattern is None:
        return None
    period, ratio, cost = pattern
    by_epoch = period in {loader.length for loader in evidence.loaders}
    when = "at each epoch's end" if by_epoch else f"every {period} steps"
    saves = result.checkpoint_seconds if result.checkpoint_saves else None
    saved = f"; torch.save took {duration(saves)} of the run" if saves else ""
    return Seen(
        f"{when} one takes {ratio:.1f} times the usual step, which costs {percent(cost)} of the "
        f"time{saved}",
        measured(
            Source.STEPS,
            period_steps=period,
            long_step_ratio=ratio,
            cost_share=cost,
            checkpoint_saves=result.checkpoint_saves,
            checkpoint_seconds=saves,
        ),
        ADVICE_EPOCH if by_epoch else ADVICE_PERIOD,
        bound=gain_without(cost),
    )


def long_steps(window: Window | None) -> tuple[int, float, float] | None:
    """Every so many steps one is so many times the median, which costs such a share of the time.

    None where long steps have no pattern.
    """
    lengths = working_ns(window)
    if not len(lengths) or np.median(lengths) <= 0:
        return None
    long = _long(lengths)
    apart = np.diff(long)
    period = int(np.median(apart)) if len(long) >= FEWEST_LONG else 0
    if period < LEAST_PERIOD or np.mean(np.abs(apart - period) <= period // 20) < REGULAR:
        return None
    ratio = float(np.median(lengths[long]) / np.median(lengths))
    return period, ratio, beyond_usual(lengths)


def working_ns(window: Window | None) -> Times:
    """What each measured step took, without what it waited longer for data than usual."""
    if window is None or not window.measured_steps:
        return np.zeros(0, dtype=np.int64)
    data = np.array(window.clock.steps[StepRow.DATA_NS][window.first : window.last])
    late = np.maximum(data - np.median(data), 0).astype(np.int64)
    lengths: Times = np.maximum(np.array(window.durations_ns) - late, 0)
    return lengths


def beyond_usual(lengths: Times) -> float:
    """The share of the time that long steps take beyond the median."""
    beyond = float((lengths[_long(lengths)] - np.median(lengths)).sum())
    return beyond / max(int(lengths.sum()), 1)


def _long(lengths: Times) -> Indices:
    return np.flatnonzero(lengths > LONG * np.median(lengths))
