"""Changes that the script makes between two batches, which without workers reach the next one.

A worker reads a copy of the data set, and the sampler is asked ahead: weights that follow the
losses, or a bank of embeddings, would be those of some batches ago. So what the data set, its
`collate_fn` and the sampler reach is compared, once a batch was handed out, with what it is like
when the script asks for the next one. (What the sampler itself changes it changes in between.)

The first batches of a loader are asked for one at a time, so no other one was drawn by then. Where
something has changed, the loader goes on in the script's process, from that batch on. Changes that
begin later are found at the next comparison: the batches before it may have been of an older state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpurun.identity_map import IdentityMap
from gpurun.knobs.loading.added_workers import AddedWorkers, MarkedInt
from gpurun.knobs.loading.applied.loader_iterators import (
    ALONE,
    FIRST_BATCHES,
    go_on_without_workers,
    on_handing_out,
    on_reading,
)
from gpurun.knobs.loading.dataset_state import State, changed_names, dataset_state, listed

IN_TIME = "the script changes {} during an epoch, which workers would not see"
LATE = "the script changes {} during an epoch, which its workers did not see"


def watch_changes(revoked: Callable[[str], None]) -> None:
    """Compare what loaders with a `MarkedInt` of workers read: after each of their first batches,
    after batches 4, 8, 16, ... and at the end of each epoch. `revoked` hears of workers of the
    script's own whose number is ours: they stay."""
    changes = _ScriptChanges(revoked)
    on_handing_out(changes.handed_out)
    on_reading(changes.asked)


class _ScriptChanges:
    def __init__(self, revoked: Callable[[str], None]) -> None:
        self._revoked = revoked
        self._read: IdentityMap[State | None] = IdentityMap()
        """By iterator: its data set after the epoch's first batch."""
        self._drawn: IdentityMap[State | None] = IdentityMap()
        """By iterator: its sampler after the batch that was looked at last."""

    def handed_out(self, iterator: Any) -> None:
        if _is_compared(iterator, iterator._num_yielded + 1):
            if iterator._num_yielded == 0:
                self._read[iterator] = dataset_state(iterator._dataset, iterator._collate_fn)
            self._drawn[iterator] = dataset_state(iterator._index_sampler)

    def asked(self, iterator: Any, error: BaseException | None) -> None:
        if isinstance(error, StopIteration):
            names = self._changes(iterator)
        elif error is None and _is_compared(iterator, iterator._num_yielded):
            sampler = dataset_state(iterator._index_sampler)
            names = [*self._changes(iterator), *changed_names(self._drawn.get(iterator), sampler)]
        else:
            return
        if names and iterator not in ALONE:
            drawn_ahead = iterator._send_idx > iterator._rcvd_idx
            told = LATE if drawn_ahead or error is not None else IN_TIME
            reason = told.format(listed(names))
            if isinstance(iterator._num_workers, AddedWorkers):
                go_on_without_workers(iterator, reason)
            else:
                self._revoked(reason)

    def _changes(self, iterator: Any) -> list[str]:
        now = dataset_state(iterator._dataset, iterator._collate_fn)
        return changed_names(self._read.get(iterator), now)


def _is_compared(iterator: Any, batches: int) -> bool:
    """True if it is compared after so many batches of an epoch."""
    if not isinstance(iterator._num_workers, MarkedInt) or iterator in ALONE:
        return False
    return 0 < batches <= FIRST_BATCHES or batches.bit_count() == 1
