"""Operators of a host thread contain one another: from their stretches to total and own times."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.timeline.kernel_groups import operator_group
from gpurun.timeline.model import Operator, Range


def operators_of(calls: Sequence[Range]) -> tuple[Operator, ...]:
    """Sums by name, the largest own time first; a call inside another of its name counts once.

    `calls` are in ascending order of their begin, an outer one before those inside it.
    """
    totals: dict[str, list[int]] = {}
    open_calls: dict[int, list[tuple[int, str]]] = {}
    for call in calls:
        stack = open_calls.setdefault(call.thread, [])
        while stack and stack[-1][0] <= call.begin_ns:
            stack.pop()
        length = call.end_ns - call.begin_ns
        count = totals.setdefault(call.name, [0, 0, 0])
        count[0] += 1
        count[2] += length
        if all(name != call.name for _, name in stack):
            count[1] += length
        if stack:
            totals[stack[-1][1]][2] -= length
        stack.append((call.end_ns, call.name))
    found = (
        Operator(name, operator_group(name), calls, total, own)
        for name, (calls, total, own) in totals.items()
    )
    return tuple(sorted(found, key=lambda each: -each.self_ns))
