"""Rehearses loaders with added workers, under settings that no trial has compared.

Before such a loader is first opened, a forked process loads a few batches as the script does, in
one process, and another one loads them with workers. Both begin with what the script holds at that
moment, and samples draw by their index (`sample_seeds`). Where batches differ, the loader stays as
the script built it: a `collate_fn` counts its calls, say, or a data set keeps a position.

The order matters: both load the same batches one after the other, so a counter shows. The batches
are small, so that slow samples make several of them. The indices are the first ones of the data
set: to ask the sampler would draw from the script's generators.

What the data set changes as it is loaded (a list of bad samples, a cache) workers change in their
copies alone. A script that reads it is not known from one that does not, so it is told by name.

Files that a data set writes stay written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from gpurun.knobs.loading.added_workers import AddedWorkers, MarkedInt
from gpurun.knobs.loading.applied.loader_iterators import open_without_workers
from gpurun.knobs.loading.dataset_state import changed_names, dataset_state, listed
from gpurun.records.frames import transparent
from gpurun.records.messages.traits import place
from gpurun.records.spec import SEED, RunSpec
from gpurun.runtime.core.knob_outcomes import OUTCOMES
from gpurun.runtime.core.patching import guarded, replace
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.core.tensor_values import whole_checksum
from gpurun.runtime.observe.watched_loaders import LOADERS
from gpurun.runtime.trial.sample_passes import PASS_SAMPLES, can_fork, hand_out, in_fork
from gpurun.runtime.trial.sample_seeds import SAMPLE_SEEDS, copy_of

AT_ONCE = 4
"""Samples a batch at most."""
MOST_WORKERS = 4
PLAIN_SECONDS = 2.0
"""Where samples are so slow that not two batches are loaded by then, nothing is compared."""
WORKERS_SECONDS = 5.0
"""Two batches have come in `PLAIN_SECONDS` without workers: workers without any hang."""
NOT_COMPARED = "its samples were not compared"
LOST = "workers handed out no samples"
CHANGES = "its data set changes as it is loaded ({}): the script does not see what workers change"


class LoaderRehearsal:
    """The rehearsals of this process, by the settings of its spec."""

    def __init__(self, spec: RunSpec) -> None:
        self._control = Path(spec.run_dir) / "control"
        self._found: dict[tuple[object, ...], str | None] = {}
        """By place of the loader and classes of its data: how its samples differ. A loop may build
        data set and loader anew for each epoch."""

    def install(self) -> None:
        """Stand before every opening of a loader."""
        replace(DataLoader, "__iter__", self._watch_iter)

    def _watch_iter(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        rehearse = guarded("rehearsal of loaders", self._rehearse, lambda _: _not_compared())

        @transparent
        def __iter__(loader: Any) -> Any:
            if loader.num_workers and isinstance(loader.num_workers, AddedWorkers):
                rehearse(loader)
            return original(loader)

        return __iter__

    def _rehearse(self, loader: Any) -> None:
        at = (place(LOADERS.key_of(loader)), *_classes(loader.dataset))
        if at not in self._found:
            self._found[at] = self._difference(loader)
        reason = self._found[at]
        if reason == NOT_COMPARED:
            _not_compared()
        elif reason is not None:
            open_without_workers(loader, reason)

    def _difference(self, loader: Any) -> str | None:
        """What workers do otherwise than the script's process; None if nothing."""
        plain = self._load(loader, 0, PLAIN_SECONDS) if can_fork(loader) else []
        changed = plain.pop() if plain and isinstance(plain[-1], str) else ""
        if changed:
            OUTCOMES.record("loader_workers", "applied", CHANGES.format(changed))
        if len(plain) < 2:
            return NOT_COMPARED
        workers = min(max(loader.num_workers, 2), MOST_WORKERS)
        theirs = self._load(loader, workers, WORKERS_SECONDS)
        if not theirs:
            return LOST
        pairs = list(zip(plain, theirs, strict=False))
        wrong = sum(one != other for one, other in pairs)
        if wrong:
            of = f"{wrong} of {len(pairs)} batches"
            return f"workers handed out other samples than the script's process: {of}"
        return None if len(pairs) > 1 else NOT_COMPARED

    def _load(self, loader: Any, workers: int, seconds: float) -> list[Any]:
        """A checksum of each batch, in turn; 0 workers: in one process, as the script does, and
        then the names of what the data set changed meanwhile."""
        answer = self._control / f"rehearsal-{os.getpid()}"
        try:
            return in_fork(lambda: self._checksums(loader, workers), answer, seconds)
        finally:
            answer.unlink(missing_ok=True)

    def _checksums(self, loader: Any, workers: int) -> Iterator[int | str]:
        """In the forked process."""
        RECORDER.run_dir = None  # nothing of this is the run's
        SAMPLE_SEEDS.install(SEED, self._control)
        SAMPLE_SEEDS.begin()
        twin = copy_of(loader)
        # no `AddedWorkers`, which would be rehearsed
        twin.__dict__.update(num_workers=MarkedInt(workers), persistent_workers=False)
        each = range(min(len(twin.dataset), PASS_SAMPLES))
        size = min(twin.batch_size or AT_ONCE, AT_ONCE)
        batches = [list(each[at : at + size]) for at in range(0, len(each), size)]
        read = (twin.dataset, twin.collate_fn) if not workers else ()
        before = dataset_state(*read, draws=False)
        for _, batch, _ in hand_out(twin, batches if twin._auto_collation else each):
            yield whole_checksum(batch)
        if read:
            yield listed(changed_names(before, dataset_state(*read, draws=False)))


def _classes(dataset: Any) -> tuple[str, ...]:
    """Of a data set, and of those that it wraps."""
    inner = getattr(dataset, "dataset", None)
    name = f"{type(dataset).__module__}.{type(dataset).__qualname__}"
    return (name, *(() if inner is None or inner is dataset else _classes(inner)))


def _not_compared() -> None:
    """Tell it; the loader keeps its workers, as the settings say."""
    OUTCOMES.record("loader_workers", "applied", NOT_COMPARED)
