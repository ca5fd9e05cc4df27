"""Records the samples that loaders hand out: their order, and the contents of audited batches.

The order of indices is kept for the whole trial (an append a batch); contents are looked at in the
audited steps only, in which `sample_seeds` has each sample draw by its index.

Audited batches are too few: of 60,000 samples 329 were mixed up by a file position that workers
shared, and 838 samples show that with 99 %. And a cache that fills in the first pass shows itself
in the second one. So at the end of these steps each sample is loaded once, then once more, then
often, as the trial's own settings load them.

A forked process does it: whatever it changes in the data set (a cache, a counter, a position of a
file) is gone with it. The second pass has another order, so that other workers load a sample.
`loader_rehearsal` loads in such processes, too.
"""

from __future__ import annotations

import marshal
import math
import operator
import os
import random
import signal
import time
import warnings
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from gpurun.knobs.loading.added_workers import SENT_TO_ALL, own_positions
from gpurun.knobs.loading.loader_fitness import start_method, why_no_fork
from gpurun.records.events import SamplesEvent
from gpurun.runtime.core.patching import guarded
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.core.step_agreement import rank_and_size
from gpurun.runtime.core.tensor_values import checksum, is_tensor, leaves, plain, tensors
from gpurun.runtime.observe.step_clock import CLOCK, LoaderState
from gpurun.runtime.trial.sample_seeds import SAMPLE_SEEDS

ORDER_LIMIT = 1_000_000
"""Data-set indices remembered a trial, eight bytes each."""
CONTENT_LIMIT = 20_000
"""Samples whose content is remembered a trial."""
PASS_SAMPLES = 512
"""Two passes of so many are a thousand samples. Where there are fewer, the third is the rest."""
MOST_AT_ONCE = 8
"""Samples a batch: of larger ones a pass over slow samples has few, and keeps few workers busy."""
PASS_SECONDS = 1.5
"""A pass over slow samples ends after so long."""
HUNG_SECONDS = 20.0
"""A process that has not ended by then never will: a data set may not survive a fork."""
POLL_SECONDS = 0.01

Pass = tuple[tuple[int, ...], float]
"""A checksum of its batches of indices, then of each sample in turn; samples a loading second."""


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
        self._indices = self._contents = 0

    def batch(self, loader: LoaderState, indices: object, batch: object) -> None:
        """A loader handed out a batch."""
        if not torch.is_grad_enabled() and not CLOCK.untrained:
            return
        looked = self.looking and self._contents < CONTENT_LIMIT
        seen = self._passes.get((loader.number, loader.passes)) or _Pass()
        stream = indices is None or (isinstance(indices, list) and indices and indices[0] is None)
        listed = [] if stream else _whole_numbers(indices)
        sums = contents(batch, indices) if looked and (listed or stream) else []
        if stream:
            listed = list(range(len(seen.order), len(seen.order) + len(sums)))
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
        passes, self._passes = self._passes, {}
        for (loader, number), seen in passes.items():
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


def _whole_numbers(indices: object) -> list[int]:
    several: Sequence[Any] = indices if isinstance(indices, (list, tuple)) else [indices]
    try:
        return array("q", map(operator.index, several)).tolist()
    except (TypeError, OverflowError, RuntimeError):  # keys of another kind
        return []


def contents(batch: object, indices: object) -> list[tuple[int, ...]]:
    """Checksums of the leaves of each sample. `indices`: those of the batch; None of a stream."""
    size = _size(batch, indices)
    if size is None:
        parts: list[object] = [*tensors(batch)]
        return [tuple(map(checksum, parts or [batch]))]
    rows = [plain(x).cpu() if is_tensor(x) else x for x in leaves(batch, size)]
    return [tuple(checksum(leaf[i]) for leaf in rows) for i in range(size)]


def _size(batch: object, indices: object) -> int | None:
    """The number of samples in a batch; None of one that is a sample itself."""
    if not isinstance(indices, (list, tuple, type(None))):
        return None
    if indices and indices[0] is not None:
        return len(indices)
    first = next(iter(tensors(batch)), None)
    return None if first is None or not first.dim() else int(first.shape[0])


# -- loaded again ----------------------------------------------------------------------------------


def load_again(twin: Any, audited: Sequence[Any], answer: Path) -> tuple[Pass, ...]:
    """The passes over the audited samples.

    As many passes as were over when the process ended, or hung. `twin`: a loader of its own.
    `audited`: the batches of indices that were audited, as the sampler handed them out. `answer`:
    the file through which the process answers.
    """
    if not can_fork(twin):
        return ()
    found = in_fork(lambda: _passes(twin, audited), answer, HUNG_SECONDS)
    return tuple((tuple(sums), rate) for sums, rate in found)


def can_fork(loader: Any) -> bool:
    """True if a forked process can load as this loader does.

    Not a data set that no forked process can read: the script would miss what that has read from
    its pipe, say. Nor workers of another start method: each would run the script's imports again.
    """
    context = {"multiprocessing_context": loader.multiprocessing_context}
    return start_method(context) == "fork" and not why_no_fork(vars(loader))


def in_fork(load: Callable[[], Iterator[Any]], answer: Path, seconds: float) -> list[Any]:
    """The values that `load` yields in a forked process, as many as it had when it ended.

    It is killed after `seconds`. `answer`: the file through which it answers, by `marshal`.
    """
    answer.parent.mkdir(parents=True, exist_ok=True)
    # a signal that is sent to all processes of a job is for the script alone
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SENT_TO_ALL)
    child = 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of threads: workers fork, too
            child = os.fork()
        if child == 0:
            try:
                _answer(answer, load, seconds)
            finally:
                os._exit(0)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _wait_for(child, seconds)
    except BaseException:  # Ctrl-C
        if child:
            os.kill(child, signal.SIGKILL)
            _wait_for(child, seconds)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    known: list[Any] = marshal.loads(answer.read_bytes()) if answer.exists() else []
    return known


def _wait_for(child: int, seconds: float) -> None:
    until = time.monotonic() + seconds
    with suppress(ChildProcessError):  # the script waits for any process, and was told of ours
        while not os.waitpid(child, os.WNOHANG)[0]:
            time.sleep(POLL_SECONDS)
            if time.monotonic() > until:
                os.kill(child, signal.SIGKILL)


def _answer(answer: Path, load: Callable[[], Iterator[Any]], seconds: float) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(math.ceil(seconds) + 1)  # where nobody is left to kill it
    silent = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silent, stream)
    own_positions()
    torch.set_num_threads(1)  # threads of the parent are not there
    draft, known = answer.with_suffix(".new"), []
    for one in load():
        known.append(one)
        draft.write_bytes(marshal.dumps(known))
        draft.rename(answer)


def hand_out(twin: Any, batches: Sequence[Any]) -> Iterator[tuple[Any, Any, float]]:
    """Indices, batch and the seconds that it took, of these batches of indices as `twin` loads
    them. It ends early where samples are slow."""
    twin.__dict__["batch_sampler" if twin._auto_collation else "sampler"] = batches
    began = time.monotonic()
    loader, asked = iter(twin), time.monotonic()
    for indices, batch in zip(batches, loader, strict=False):
        yield indices, batch, time.monotonic() - asked
        asked = time.monotonic()
        if asked > began + PASS_SECONDS:
            break


def _passes(twin: Any, audited: Sequence[Any]) -> Iterator[tuple[list[int], float]]:
    sampler: list[Any] = []  # another content in each pass: workers that live on keep it
    for batches in _batches(audited):
        sampler[:] = batches
        found, loading = [_sum(batches)], 0.0
        for indices, batch, seconds in hand_out(twin, sampler):
            loading += seconds  # without the time of checksums
            found += map(_sum, contents(batch, indices))
        yield found, (len(found) - 1) / max(loading, 1e-9)


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
