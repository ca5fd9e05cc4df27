"""One step as a picture: what ran when in each row, in cells as fine as the eye can tell apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from gpurun.records.profile_figures import PictureRow, StepPicture
from gpurun.timeline.columns import begins, ends, selected
from gpurun.timeline.device_work import device_work, exchanging, host_exchanges
from gpurun.timeline.kernel_groups import ON_TENSOR_CORES
from gpurun.timeline.model import MODEL_PHASES, Group, Range, Timeline
from gpurun.timeline.runtime_calls import LAUNCHES, Role, is_sync, role_of
from gpurun.timeline.time_intervals import intervals

CELLS = 240
"""Pieces of a step; in each the event that lasts longest counts."""
LEVELS = 4
"""How much of a cell is filled is told in quarters: hundreds of short kernels fill no cell."""
MOST_STREAMS = 3
OTHER = "other"
Events = Sequence[Any]


def step_picture(timeline: Timeline) -> StepPicture | None:
    """The step of median length, with every row that a source recorded; None without steps."""
    if not timeline.steps:
        return None
    lengths = ends(timeline.steps) - begins(timeline.steps)
    number = int(np.argsort(lengths, kind="stable")[(len(lengths) - 1) // 2])
    step = timeline.steps[number]
    if step.end_ns <= step.begin_ns:
        return None
    rows = [_row(name, of, step) for name, of in _rows(_within(timeline, step)) if any(of.values())]
    return StepPicture(number + 1, (step.end_ns - step.begin_ns) / 1e6, tuple(rows))


def _within(timeline: Timeline, step: Range) -> Timeline:
    """The events that touch the step."""
    kept: dict[str, Any] = {}
    for name in ("ranges", "kernels", "copies", "runtime_calls"):
        events = getattr(timeline, name) or ()
        kept[name] = selected(
            events, (begins(events) < step.end_ns) & (ends(events) > step.begin_ns)
        )
    return replace(timeline, window_begin_ns=step.begin_ns, window_end_ns=step.end_ns, **kept)


def _rows(timeline: Timeline) -> Iterator[tuple[str, Mapping[str, Events]]]:
    """The rows from the host to the device, each with its events by what they are."""
    yield "parts of the step", {name: timeline.named(name) for name in MODEL_PHASES}
    calls: dict[str, list[Any]] = defaultdict(list)
    for call in timeline.runtime_calls or ():
        role = role_of(call.name)
        waits = is_sync(call.name) or role is Role.ALLOCATE
        calls["launches" if role in LAUNCHES else "waits" if waits else OTHER].append(call)
    yield "calls of CUDA", calls
    work = device_work(timeline)
    if work is not None:
        streams: dict[int, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
        for kernel in selected(work.kernels, ~exchanging(work.kernels)):
            streams[kernel.stream][_kind(kernel.group)].append(kernel)
        order = sorted(streams, key=lambda stream: -_total_ns(streams[stream]))
        for stream in order[:MOST_STREAMS]:
            yield f"kernels of stream {stream}", streams[stream]
        yield "copies", {"copies": work.copies}
        yield "collectives", {"collectives": selected(work.kernels, exchanging(work.kernels))}
    yield "collectives on the host", {"collectives": host_exchanges(timeline)}


def _kind(group: Group) -> str:
    if group in ON_TENSOR_CORES:
        return "products"
    return group.value if group is Group.OPTIMIZER else OTHER


def _total_ns(of: Mapping[str, Events]) -> int:
    return sum(event.end_ns - event.begin_ns for events in of.values() for event in events)


def _row(name: str, of: Mapping[str, Events], step: Range) -> PictureRow:
    length = step.end_ns - step.begin_ns
    edges = step.begin_ns + np.linspace(0, length, CELLS + 1).astype(np.int64)
    busy = [intervals(events) for events in of.values()]
    covered = np.array([each.covered(edges[:-1], edges[1:]) for each in busy])
    width = np.maximum(np.diff(edges), 1)
    level = np.ceil(LEVELS * np.minimum(covered.sum(axis=0) / width, 1)).astype(int)
    longest = covered.argmax(axis=0)
    changes = np.flatnonzero(np.diff(longest * (LEVELS + 1) + level, prepend=-1))
    names, at_ms = list(of), ((edges - edges[0]) / 1e6).tolist()
    spans = [
        (at_ms[begin], at_ms[end], names[longest[begin]], float(level[begin]) / LEVELS)
        for begin, end in pairwise([*changes.tolist(), CELLS])
        if level[begin]
    ]
    whole = intervals([event for events in of.values() for event in events])
    share = whole.within(step.begin_ns, step.end_ns).total_ns / length
    return PictureRow(name, share, tuple(spans))
