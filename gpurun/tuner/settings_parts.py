"""Parts of stored settings: what can be left out, and what goes with it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from gpurun.errors import GpurunError
from gpurun.records.tuning import SavedSettings


def without(saved: SavedSettings, knobs: Iterable[str]) -> tuple[SavedSettings, tuple[str, ...]]:
    """The settings without `knobs`, and the names of the others that went with them.

    Settings that were made only for the sake of these knobs are left out too. `GpurunError` if a
    knob is not set.
    """
    asked = tuple(dict.fromkeys(knobs))
    unknown = [name for name in asked if name not in saved.settings]
    if unknown:
        known = ", ".join(saved.settings) or "none"
        raise GpurunError(f"--without {unknown[0]}: it is not set", f"set are: {known}")
    out = _with_companions(asked, saved.companions)
    rest = {name: value for name, value in saved.settings.items() if name not in out}
    others = tuple(name for name in saved.settings if name in out and name not in asked)
    return replace(saved, settings=rest, speedup=None), others


def parts(saved: SavedSettings) -> tuple[tuple[str, ...], ...]:
    """The names of the settings, those together that go with one another."""
    found: list[tuple[str, ...]] = []
    for name in saved.settings:
        if not any(name in part for part in found):
            linked = _linked(name, saved.companions)
            found.append(tuple(other for other in saved.settings if other in linked))
    return tuple(found)


def _with_companions(
    asked: Collection[str], companions: Mapping[str, tuple[str, ...]]
) -> frozenset[str]:
    """`asked`, and their companions that nothing else needs."""
    out = set(asked)
    before = 0
    while len(out) > before:
        before = len(out)
        kept = {other for name, needed in companions.items() if name not in out for other in needed}
        out |= {other for name in out for other in companions.get(name, ())} - kept
    return frozenset(out)


def _linked(name: str, companions: Mapping[str, tuple[str, ...]]) -> frozenset[str]:
    """Every knob that is tied to `name`, by whatever chain of companions."""
    linked = {name}
    before = 0
    while len(linked) > before:
        before = len(linked)
        for one, needed in companions.items():
            tied = {one, *needed}
            if tied & linked:
                linked |= tied
    return frozenset(linked)
