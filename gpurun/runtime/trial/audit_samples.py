"""Records the samples that loaders hand out: their order, and the contents of audited batches.

The order of indices is kept for the whole trial (an append a batch); contents are looked at in the
audited steps only, in which `sample_seeds` has each sample draw by its index. At the end of these
steps `sample_passes` loads the samples again.
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gpurun.records.events import SamplesEvent
from gpurun.runtime.core.patching import guarded
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.core.step_agreement import rank_and_size
from gpurun.runtime.observe.step_clock import CLOCK, LoaderState
from gpurun.runtime.trial.sample_passes import Pass, contents, load_again
from gpurun.runtime.trial.sample_seeds import SAMPLE_SEEDS

ORDER_LIMIT = 1_000_000
"""Data-set indices remembered a trial, eight bytes each."""
CONTENT_LIMIT = 20_000
"""Samples whose content is remembered a trial."""


@dataclass
class _Pass:
    order: array[int] = field(default_factory=lambda: array("q"))
    checksums: dict[str, tuple[int, ...]] = field(default_factory=dict)
    audited: list[Any] = field(default_factory=list)
    """Indices of the batches whose contents are known, as the sampler handed them out."""
    again: tuple[Pass, ...] = ()


class SamplesAudit:
    """Remembers what each pass over each loader handed out. `steps`: the audited ones."""

    def __init__(self, steps: int = 0) -> None:
        self.looking = True
        """False once only the order is kept."""
        self._steps = steps
        self._passes: dict[tuple[int, int], _Pass] = {}
        self._indices = 0
        self._contents = 0

    def batch(self, loader: LoaderState, indices: object, batch: object) -> None:
        """A loader handed out a batch."""
        if not torch.is_grad_enabled() and not CLOCK.untrained:
            return
        looked = self.looking and self._contents < CONTENT_LIMIT
        seen = self._passes.get((loader.number, loader.passes)) or _Pass()
        if _of_stream(indices):
            sums = contents(batch, None) if looked else []
            listed = list(range(len(seen.order), len(seen.order) + len(sums)))
        else:
            listed = _whole_numbers(indices)
            sums = contents(batch, indices) if looked and listed else []
        if not listed:
            return
        self._passes[loader.number, loader.passes] = seen
        if self._indices < ORDER_LIMIT:
            seen.order.extend(listed)
            self._indices += len(listed)
        if sums:
            self._contents += len(listed)
            seen.audited.append(indices)
            seen.checksums |= zip(map(str, listed), sums, strict=True)

    def load_again(self, control: Path) -> None:
        """Load the audited samples of each loader's first pass again, in a forked process."""
        if rank_and_size()[0]:
            return
        load = guarded("samples loaded again", load_again)
        for (loader, number), seen in self._passes.items():
            twin = SAMPLE_SEEDS.copies.get(loader)
            if number == 1 and twin is not None and seen.audited:
                answer = control / f"again-{loader}"
                seen.again = load(twin, seen.audited[: self._steps], answer) or ()

    def finish(self) -> None:
        """Write one event a pass. Only at the end of a trial."""
        for (loader, number), seen in self._passes.items():
            RECORDER.event(
                SamplesEvent(
                    loader=loader,
                    epoch=number,
                    order=tuple(seen.order),
                    checksums=seen.checksums,
                    again=tuple(sums for sums, _ in seen.again),
                    again_rates=tuple(rate for _, rate in seen.again),
                    drawn=SAMPLE_SEEDS.drew,
                    seeded_batches=SAMPLE_SEEDS.seeded,
                )
            )
        self._passes = {}


def _of_stream(indices: object) -> bool:
    """True for what torch's sampler of a stream hands out: None, or a list of it."""
    return indices is None or (isinstance(indices, list) and bool(indices) and indices[0] is None)


def _whole_numbers(indices: object) -> list[int]:
    several: Sequence[Any] = indices if isinstance(indices, (list, tuple)) else [indices]
    try:
        return array("q", map(operator.index, several)).tolist()
    except (TypeError, OverflowError, RuntimeError):  # keys of another kind
        return []
