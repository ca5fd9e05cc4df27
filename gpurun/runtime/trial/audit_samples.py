"""Records the samples that loaders hand out: their order, contents and random parts.

The order of indices is kept for the whole trial (an append a batch); contents are looked at in the
audited steps only. At the very end audited batches are fetched a second time, under other seeds.
This shows which parts of a sample are random by design.
"""

from __future__ import annotations

import math
import random
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gpurun.records.events import SamplesEvent
from gpurun.runtime.core.patching import guarded
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.core.tensor_values import (
    checksum,
    is_tensor,
    leaves,
    mean_and_deviation,
    plain,
    tensors,
)
from gpurun.runtime.observe.step_clock import CLOCK, LoaderState

REFETCH_SEED = 20011
REFETCH_SECONDS = 2.0
REFETCH_SAMPLES = 256
"""A larger batch is not fetched again: the first samples of it are."""
REFETCH_ENOUGH = 128
"""Further audited batches are fetched again up to this many samples: eight show no likeness."""
REFETCH_QUICK = 0.5
"""No further one is begun after so many seconds, if there are `REFETCH_LEAST` samples."""
REFETCH_LEAST = 16
ORDER_LIMIT = 1_000_000
"""Data-set indices remembered a trial, eight bytes each."""
CONTENT_LIMIT = 20_000
"""Samples whose content is remembered a trial."""
DIGITS = 6

Moments = list[tuple[float, float] | None]
"""By leaf: mean and standard deviation of a sample's numbers; None where it has no such thing."""
Content = tuple[tuple[int, ...], Moments]
"""Checksums and moments of a sample."""


@dataclass
class _Pass:
    order: array[int] = field(default_factory=lambda: array("q"))
    checksums: dict[str, tuple[int, ...]] = field(default_factory=dict)
    moments: dict[str, Moments] = field(default_factory=dict)
    audited: list[list[int]] = field(default_factory=list)
    """Indices of the audited batches."""
    recipe: tuple[Any, Any, bool] | None = None


class SamplesAudit:
    """Remembers what each pass over each loader handed out."""

    def __init__(self) -> None:
        self.looking = True
        self._passes: dict[tuple[int, int], _Pass] = {}
        self._indices = 0
        self._contents = 0
        self._handed: dict[int, int | None] = {}
        self._batches = 0

    def batch(self, loader: LoaderState, indices: object, batch: object) -> None:
        """A loader handed out a batch."""
        if not torch.is_grad_enabled() and not CLOCK.untrained:
            return
        if self.looking:
            self._remember_handed(batch)
        several = indices if isinstance(indices, (list, tuple)) else None
        single = several is None
        listed = _whole_numbers([indices] if several is None else several)
        if not listed:
            return
        seen = self._passes.setdefault((loader.number, loader.passes), _Pass())
        if self._indices < ORDER_LIMIT:
            seen.order.extend(listed)
            self._indices += len(listed)
        if self.looking and self._contents < CONTENT_LIMIT:
            self._contents += len(listed)
            seen.recipe = loader.recipe
            seen.audited.append(listed)
            for index, (sums, moments) in zip(
                listed, _contents(batch, listed, single), strict=True
            ):
                seen.checksums[str(index)] = sums
                seen.moments[str(index)] = moments

    def fed(self, value: object) -> int | None:
        """The batch that a tensor is a part of, counted over all loaders; None if of none."""
        return self._handed.get(checksum(value))

    def finish(self) -> None:
        """Write one event a pass. Only at the end of a trial: it fetches samples again."""
        refetch = guarded("second fetch", self._refetch)
        random_leaves: dict[int, list[int]] = {}
        for (loader, number), seen in self._passes.items():
            again: dict[str, Content] = {}
            if seen.checksums and loader not in random_leaves:
                again = refetch(seen) or {}
                random_leaves[loader] = _random_leaves(seen.checksums, again)
            wanted = random_leaves.get(loader, [])
            RECORDER.event(
                SamplesEvent(
                    loader=loader,
                    epoch=number,
                    order=tuple(seen.order),
                    checksums=seen.checksums,
                    moments=_of_leaves(seen.moments, wanted),
                    checksums_again={index: sums for index, (sums, _) in again.items()},
                    moments_again=_of_leaves({i: m for i, (_, m) in again.items()}, wanted),
                )
            )
        self._passes = {}

    def stop_looking(self) -> None:
        """From now on only the order is kept."""
        self.looking = False
        self._handed = {}

    # -- inside --------------------------------------------------------------------------------

    def _remember_handed(self, batch: object) -> None:
        self._batches += 1
        for tensor in tensors(batch):
            if tensor.numel() > 1:
                key = checksum(tensor)
                # a constant part, such as a mask of ones, tells nothing
                self._handed[key] = None if key in self._handed else self._batches

    def _refetch(self, seen: _Pass) -> dict[str, Content]:
        """Checksums and moments by index of audited samples, fetched again under other seeds."""
        numpy = sys.modules.get("numpy")
        state = (
            torch.random.get_rng_state(),
            random.getstate(),
            numpy.random.get_state() if numpy is not None else None,
        )
        try:
            torch.default_generator.manual_seed(REFETCH_SEED)
            random.seed(REFETCH_SEED)
            if numpy is not None:
                numpy.random.seed(REFETCH_SEED)
            with torch.no_grad():
                again = _fetch_again(seen)
        finally:
            torch.random.set_rng_state(state[0])
            random.setstate(state[1])
            if numpy is not None:
                numpy.random.set_state(state[2])
        known = {i: found for i, found in again.items() if i in seen.checksums}
        same_form = all(len(sums) == len(seen.checksums[i]) for i, (sums, _) in known.items())
        return known if same_form else {}


def _fetch_again(seen: _Pass) -> dict[str, Content]:
    again: dict[str, Content] = {}
    if seen.recipe is None:
        return again
    began = time.monotonic()
    for wanted in seen.audited:
        indices, batch, single = _fetch(*seen.recipe, wanted)
        if indices:
            again.update(zip(map(str, indices), _contents(batch, indices, single), strict=True))
        seconds = time.monotonic() - began
        quick = REFETCH_QUICK if len(again) >= REFETCH_LEAST else REFETCH_SECONDS
        if len(again) >= REFETCH_ENOUGH or seconds > quick:
            break
    return again


def _random_leaves(before: dict[str, tuple[int, ...]], again: dict[str, Content]) -> list[int]:
    varied: set[int] = set()
    for index, (sums, _) in again.items():
        pairs = zip(before[index], sums, strict=True)
        varied |= {leaf for leaf, (a, b) in enumerate(pairs) if a != b}
    return sorted(varied)


def _fetch(
    dataset: Any, collate: Callable[[Any], Any], collating: bool, indices: list[int]
) -> tuple[list[int], Any, bool]:
    """A batch of these indices, or of as many as could be had in time."""
    if not collating:
        single = len(indices) == 1
        return indices, collate(dataset[indices[0] if single else indices]), single
    # padding depends on the whole batch: a part of one would come out differently
    wanted = indices[:REFETCH_SAMPLES]
    if callable(getattr(dataset, "__getitems__", None)):
        samples = dataset.__getitems__(wanted)
    else:
        samples, began = [], time.monotonic()
        for index in wanted:
            samples.append(dataset[index])
            if time.monotonic() - began > REFETCH_SECONDS:
                break
    return wanted[: len(samples)], collate(samples), False


def _whole_numbers(indices: Sequence[Any]) -> list[int]:
    try:
        return array("q", indices).tolist()
    except (TypeError, ValueError, OverflowError):
        pass  # tensors of one element, or keys of another kind
    try:
        return [index.__index__() for index in indices]
    except (AttributeError, TypeError, RuntimeError):
        return []


def _contents(batch: object, indices: Sequence[int], single: bool) -> list[Content]:
    """Checksums and moments by sample."""
    if single:
        parts: list[object] = [*tensors(batch)] or [batch]
        return [(tuple(map(checksum, parts)), [_moments(p) for p in parts])]
    columns = []
    for leaf in leaves(batch, len(indices)):
        rows = plain(leaf).cpu() if is_tensor(leaf) else leaf
        columns.append([(checksum(rows[i]), _moments(rows[i])) for i in range(len(indices))])
    return [
        (tuple(c[i][0] for c in columns), [c[i][1] for c in columns]) for i in range(len(indices))
    ]


def _moments(value: object) -> tuple[float, float] | None:
    if not is_tensor(value) or value.numel() < 2 or value.dtype.itemsize > 8:
        return None
    mean, deviation = mean_and_deviation(value)
    if not (math.isfinite(mean) and math.isfinite(deviation)):
        return None
    return float(f"{mean:.{DIGITS}g}"), float(f"{deviation:.{DIGITS}g}")


def _of_leaves(moments: dict[str, Moments], wanted: list[int]) -> dict[str, tuple[Any, ...]]:
    if not wanted:
        return {}
    return {
        index: tuple(m if leaf in wanted else None for leaf, m in enumerate(all_of_it))
        for index, all_of_it in moments.items()
    }
