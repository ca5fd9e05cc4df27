"""The events of one process become a timeline: parts of a step by their names, on one clock."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gpurun.records.messages.profile_events import CLOCK_MARK
from gpurun.timeline.columns import Columns, ends
from gpurun.timeline.kernel_groups import operator_group
from gpurun.timeline.model import Operator, OperatorCall, Phase, Timeline

_PATTERNS = {
    Phase.EPOCH: re.compile(r"epoch\b", re.I),
    Phase.STEP: re.compile(r"ProfilerStep#|(train(ing)?[ _])?(step|iter(ation)?)\b", re.I),
    Phase.DATA: re.compile(r"enumerate\(DataLoader\)#|(data|dataload(er|ing))\b", re.I),
    Phase.FORWARD: re.compile(r"forward\b", re.I),
    Phase.BACKWARD: re.compile(r"backward\b", re.I),
    Phase.OPTIMIZER: re.compile(r"Optimizer\.step#|optimi[sz]er\b", re.I),
}
NO_STREAM = 2**32 - 1


def phase_name(name: str) -> str:
    """The phase's own name for a range that marks one, else the name as it is."""
    return next((phase.value for phase, pattern in _PATTERNS.items() if pattern.match(name)), name)


def told_stream(value: object) -> int | None:
    """A stream's number; None for the one that stands for none, or for all."""
    return value if isinstance(value, int) and 0 <= value < NO_STREAM else None


def clock_mark(name: str) -> int | None:
    """The runtime's clock that a mark carries; None for any other range."""
    text = name.removeprefix(CLOCK_MARK)
    return int(text) if text != name and text.isdigit() else None


def timeline_of(
    source: str,
    tables: Mapping[str, Columns[Any]],
    marks: Sequence[tuple[int, int]],
    unmarked_ns: int = 0,
    **told: Any,
) -> Timeline:
    """The timeline of these events, in their order and on the runtime's clock.

    `tables`: by the timeline's field; those that are absent were not measured. `marks`: of each
    mark of the clock the source's time and the runtime's. A mark is late by what it costs to make
    it, never early: the latest runtime time relative to the source's is the best. `unmarked_ns`:
    what to add to the source's times if there are none.
    """
    offset = max((ours - theirs for theirs, ours in marks), default=unmarked_ns)
    for table in tables.values():
        table.shift(offset)
    events: dict[str, Any] = {name: table.sorted() for name, table in tables.items()}
    steps = tuple(each for each in events.get("ranges", ()) if each.name == Phase.STEP.value)
    spans = [steps] if steps else [each for each in events.values() if len(each)]
    begin = min((span[0].begin_ns for span in spans), default=0)
    end = max((int(ends(span).max()) for span in spans), default=begin)
    if "operators" in events:
        events["operators"] = operators_of(events["operators"])
    return Timeline((source,), begin, end, steps=steps or None, **events, **told)


def operators_of(calls: Sequence[OperatorCall]) -> tuple[Operator, ...]:
    """Sums by name and shapes, the largest own time first.

    `calls` are in ascending order of their begin, an outer one before those inside it.
    """
    counts: Counter[tuple[str, str | None]] = Counter()
    own: Counter[tuple[str, str | None]] = Counter()
    open_calls: dict[int, list[tuple[int, tuple[str, str | None]]]] = {}
    for call in calls:
        stack = open_calls.setdefault(call.thread, [])
        while stack and stack[-1][0] <= call.begin_ns:
            stack.pop()
        length, which = call.end_ns - call.begin_ns, (call.name, call.shapes)
        counts[which] += 1
        own[which] += length
        if stack:
            own[stack[-1][1]] -= length
        stack.append((call.end_ns, which))
    found = (
        Operator(name, operator_group(name), counts[name, shapes], own[name, shapes], shapes)
        for name, shapes in counts
    )
    return tuple(sorted(found, key=lambda each: -each.self_ns))
