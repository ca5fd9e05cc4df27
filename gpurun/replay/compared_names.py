"""The names under which things of two profiles are taken for the same.

A kernel's signature changes with its template arguments, and a compiled one is numbered anew in
each compilation. So kernels are the same if their short names are, without that number.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

from gpurun.formatting.kernel_names import short_kernel_name
from gpurun.records.diagnosis import ChangeKind, KernelMatch, ProfileChange, ThingKind
from gpurun.timeline.model import Copy, CopyKind, Kernel

_COMPILED = re.compile(r"^(triton_\w*?)_\d+(de|d)?$")
"""Inductor ends the names of its kernels with their number in the compilation."""
_COPIES = {
    CopyKind.H2D: "host to device",
    CopyKind.D2H: "device to host",
    CopyKind.D2D: "on the device",
    CopyKind.SET: "memory filled",
    CopyKind.OTHER: "other copies",
}

Thing = tuple[ThingKind, str]


@dataclass(frozen=True)
class Spent:
    """Of one thing a step: milliseconds, calls where they count, and what of it explains the step.

    `own_ms`: in which nothing earlier ran; None: other things hold it already, or replays tell.
    """

    ms: float
    calls: float = 0.0
    own_ms: float | None = None


@lru_cache(maxsize=65536)
def kernel_name(signature: str) -> str:
    """The name by which a kernel is found in another profile."""
    return _COMPILED.sub(r"\1", short_kernel_name(signature))


def thing_of(record: Kernel | Copy) -> Thing:
    """The kind and name of a device's work."""
    if isinstance(record, Copy):
        memory = {None: "", True: ", pageable", False: ", pinned"}[record.pageable]
        told = "" if record.kind is CopyKind.SET else memory
        return ThingKind.COPY, f"{_COPIES[record.kind]}{told}"
    return ThingKind.KERNEL, kernel_name(record.name)


def renamed(
    before: Collection[str], after: Collection[str]
) -> tuple[int | None, tuple[KernelMatch, ...]]:
    """How many names both have, and those whose signatures differ. From all signatures.

    None where one profile has no kernels.
    """
    sides = [_by_name(before), _by_name(after)]
    if not all(sides):
        return None, ()
    both = [name for name in sides[0] if name in sides[1]]
    found = (KernelMatch(name, *(tuple(sorted(s[name])) for s in sides)) for name in both)
    return len(both), tuple(match for match in found if match.before != match.after)


def _by_name(signatures: Collection[str]) -> Mapping[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for signature in signatures:
        found[kernel_name(signature)].add(signature)
    return found


def profile_change(
    thing: Thing, before: Spent | None, after: Spent | None, explained_ms: float | None
) -> ProfileChange:
    """How a thing changed; None: a side has no such thing."""
    return ProfileChange(
        kind=thing[0],
        name=thing[1],
        change=_how_changed(before, after),
        before_ms=None if before is None else before.ms,
        after_ms=None if after is None else after.ms,
        before_calls=None if before is None else before.calls or None,
        after_calls=None if after is None else after.calls or None,
        explained_ms=explained_ms,
    )


def _how_changed(before: Spent | None, after: Spent | None) -> ChangeKind:
    if before is None or after is None:
        return ChangeKind.ADDED if before is None else ChangeKind.LOST
    if before.calls and after.calls and before.ms > 0 and after.ms > 0:
        calls, time = after.calls / before.calls, after.ms / before.ms
        if abs(calls - 1) > abs(time / calls - 1):
            return ChangeKind.MORE if calls > 1 else ChangeKind.FEWER
    if before.ms == after.ms:
        return ChangeKind.SAME
    return ChangeKind.SLOWER if after.ms > before.ms else ChangeKind.FASTER
