"""Records the samples that loaders hand out: their order, and the contents of audited batches.

The order of indices is kept for the whole trial (an append a batch); contents are looked at in the
audited steps only, in which `sample_seeds` has each sample draw by its index.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gpurun.records.events import SamplesEvent
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.core.tensor_values import (
    checksum,
    is_tensor,
    leaves,
    plain,
    tensors,
)
from gpurun.runtime.observe.step_clock import CLOCK, LoaderState
from gpurun.runtime.trial.sample_seeds import SAMPLE_SEEDS, WORKER_BATCHES

ORDER_LIMIT = 1_000_000
"""Data-set indices remembered a trial, eight bytes each."""
CONTENT_LIMIT = 20_000
"""Samples whose content is remembered a trial."""


@dataclass
class _Pass:
    order: array[int] = field(default_factory=lambda: array("q"))
    checksums: dict[str, tuple[int, ...]] = field(default_factory=dict)
    looked_at: int = 0
    """Batches whose contents are known."""


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
        if self.looking and seen.looked_at < WORKER_BATCHES and self._contents < CONTENT_LIMIT:
            self._contents += len(listed)
            seen.looked_at += 1
            seen.checksums |= zip(map(str, listed), _contents(batch, listed, single), strict=True)

    def fed(self, value: object) -> int | None:
        """The batch that a tensor is a part of, counted over all loaders; None if of none."""
        return self._handed.get(checksum(value))

    def finish(self) -> None:
        """Write one event a pass. Only at the end of a trial."""
        for (loader, number), seen in self._passes.items():
            RECORDER.event(
                SamplesEvent(
                    loader=loader,
                    epoch=number,
                    order=tuple(seen.order),
                    checksums=seen.checksums,
                    drawn=SAMPLE_SEEDS.drew,
                    seeded_batches=SAMPLE_SEEDS.seeded,
                )
            )
        self._passes = {}

    def stop_looking(self) -> None:
        """From now on only the order is kept."""
        self.looking = SAMPLE_SEEDS.active = False
        self._handed = {}

    # -- inside --------------------------------------------------------------------------------

    def _remember_handed(self, batch: object) -> None:
        self._batches += 1
        for tensor in tensors(batch):
            if tensor.numel() > 1:
                key = checksum(tensor)
                # a constant part, such as a mask of ones, tells nothing
                self._handed[key] = None if key in self._handed else self._batches


def _whole_numbers(indices: Sequence[Any]) -> list[int]:
    try:
        return array("q", indices).tolist()
    except (TypeError, ValueError, OverflowError):
        pass  # tensors of one element, or keys of another kind
    try:
        return [index.__index__() for index in indices]
    except (AttributeError, TypeError, RuntimeError):
        return []


def _contents(batch: object, indices: Sequence[int], single: bool) -> list[tuple[int, ...]]:
    """Checksums by sample."""
    if single:
        parts: list[object] = [*tensors(batch)]
        return [tuple(map(checksum, parts or [batch]))]
    columns = []
    for leaf in leaves(batch, len(indices)):
        rows = plain(leaf).cpu() if is_tensor(leaf) else leaf
        columns.append([checksum(rows[i]) for i in range(len(indices))])
    return [tuple(column[i] for column in columns) for i in range(len(indices))]
