"""Loads the samples of audited batches again, in passes, as the trial's own settings load them.

Audited batches are too few: of 60,000 samples 329 were mixed up by a file position that workers
shared, and 838 samples show that with 99 %. And a cache that fills in the first pass shows itself
in the second one. So each sample is loaded once, then once more, then often.

A forked process does it: whatever it changes in the data set (a cache, a counter, a position of a
file) is gone with it. The second pass has another order, so that other workers load a sample.
"""

from __future__ import annotations

import marshal
import os
import random
import signal
import time
import warnings
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from gpurun.knobs.loading.added_workers import own_positions
from gpurun.knobs.loading.loader_fitness import start_method, why_no_fork
from gpurun.runtime.core.tensor_values import checksum, is_tensor, leaves, plain, tensors

PASS_SAMPLES = 512
"""Two passes of so many are a thousand samples. Where there are fewer, the third is the rest."""
MOST_AT_ONCE = 8
"""Samples a batch: of larger ones a pass over slow samples has few, and keeps few workers busy."""
PASS_SECONDS = 1.5
"""A pass over slow samples ends after so long."""
HUNG_SECONDS = 20.0
"""A process that has not ended by then never will: a data set may not survive a fork."""
POLL_SECONDS = 0.01

Contents = list[tuple[int, ...]]
"""Checksums of the leaves of each sample of a batch."""


Pass = tuple[tuple[int, ...], float]
"""A checksum of its batches of indices, then of each sample in turn; samples a loading second."""


def load_again(twin: Any, audited: Sequence[Any], answer: Path) -> tuple[Pass, ...]:
    """The passes over the audited samples.

    As many passes as were over when the process ended, or hung. `twin`: a loader of its own.
    `audited`: the batches of indices that were audited, as the sampler handed them out. `answer`:
    the file through which the process answers. Nothing of a data set that no forked process can
    read: the script would miss what that has read from its pipe, say.
    """
    context = {"multiprocessing_context": twin.multiprocessing_context}
    forked = start_method(context) == "fork"  # else each would run the script's imports again
    if not forked or why_no_fork(twin.dataset):
        return ()
    answer.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads: workers are forked, too
        child = os.fork()
    if child == 0:
        try:
            _answer(answer, twin, audited)
        finally:
            os._exit(0)
    _wait_for(child)
    if not answer.exists():
        return ()
    return tuple((tuple(sums), rate) for sums, rate in marshal.loads(answer.read_bytes()))


def _wait_for(child: int) -> None:
    until = time.monotonic() + HUNG_SECONDS
    with suppress(ChildProcessError):  # the script waits for any process, and was told of ours
        while not os.waitpid(child, os.WNOHANG)[0]:
            time.sleep(POLL_SECONDS)
            if time.monotonic() > until:
                os.kill(child, signal.SIGKILL)


# -- in the process that loads -------------------------------------------------------------------


def _answer(answer: Path, twin: Any, audited: Sequence[Any]) -> None:
    silent = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silent, stream)
    own_positions()
    torch.set_num_threads(1)  # threads of the parent are not there
    draft, known = answer.with_suffix(".new"), []
    for one in _passes(twin, audited):
        known.append(one)
        draft.write_bytes(marshal.dumps(known))
        draft.rename(answer)


def _passes(twin: Any, audited: Sequence[Any]) -> Iterator[tuple[list[int], float]]:
    sampler: list[Any] = []  # another content in each pass: workers that live on keep it
    twin.__dict__["batch_sampler" if twin._auto_collation else "sampler"] = sampler
    for batches in _batches(audited):
        sampler[:] = batches
        found, loading, began = [_sum(batches)], 0.0, time.monotonic()
        for indices, (batch, seconds) in zip(batches, _timed(iter(twin)), strict=False):
            found += map(_sum, contents(batch, indices))
            loading += seconds
            if time.monotonic() > began + PASS_SECONDS:
                break
        yield found, (len(found) - 1) / max(loading, 1e-9)


def _timed(batches: Iterator[Any]) -> Iterator[tuple[Any, float]]:
    """Each batch with the seconds that its loading took: the checksums' are not among them."""
    asked = time.monotonic()
    for batch in batches:
        yield batch, time.monotonic() - asked
        asked = time.monotonic()


def _sum(value: object) -> int:
    return zlib.crc32(repr(value).encode())


def _batches(audited: Sequence[Any]) -> Iterator[list[Any]]:
    """Batches of the audited indices, by pass; each pass has an order of its own."""
    several = isinstance(audited[0], (list, tuple))
    each = [index for batch in audited for index in (batch if several else [batch])]
    each = each[:PASS_SAMPLES]
    rest = 2 * (PASS_SAMPLES - len(each))
    often = (each * -(-rest // len(each)))[:rest]
    for number, order in enumerate((list(each), list(each), often)):
        random.Random(number).shuffle(order)
        size = min(len(audited[0]), MOST_AT_ONCE) if several else 1
        parts = [order[at : at + size] for at in range(0, len(order), size)]
        if parts:
            yield parts if several else order


def contents(batch: object, indices: object) -> Contents:
    """Checksums by sample. `indices`: those of the batch; None of a stream."""
    size = _size(batch, indices)
    if size is None:
        parts: list[object] = [*tensors(batch)]
        return [tuple(map(checksum, parts or [batch]))]
    columns = []
    for leaf in leaves(batch, size):
        rows = plain(leaf).cpu() if is_tensor(leaf) else leaf
        columns.append([checksum(rows[i]) for i in range(size)])
    return [tuple(column[i] for column in columns) for i in range(size)]


def _size(batch: object, indices: object) -> int | None:
    """The number of samples in a batch; None of one that is a sample itself."""
    if isinstance(indices, (list, tuple)):
        if indices and indices[0] is not None:
            return len(indices)
    elif indices is not None:
        return None
    first = next(iter(tensors(batch)), None)
    return None if first is None or not first.dim() else int(first.shape[0])
