"""Seeds each sample of the audited batches, so that whoever loads it draws the same numbers.

What a data set draws depends on the process that loads it, and on all draws before. So a sample is
fetched under generators seeded by its index, and a batch is collated under ones seeded by its first
index. Then all states are put back: the script goes on as if nothing had been drawn.

Generators that a data set holds itself are not known. Their draws differ in worker processes, and
the guard sees other samples: that is how it is in training, too.
"""

from __future__ import annotations

import mmap
import random
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import get_worker_info

from gpurun.knobs.loading.loader_fitness import attributes
from gpurun.records.frames import transparent
from gpurun.runtime.core.patching import guarded, replace

WORKER_BATCHES = 64
"""So many batches of a data set are seeded in workers, which do not know when the audit ends."""
ADAPTERS = {"albumentations": "set_random_seed", "monai": "set_random_state"}
"""Libraries whose transforms have generators of their own, and the method that seeds them."""


class SampleSeeds:
    """`active`: samples that this process loads are seeded, and those of workers it forks.

    `seeded`: batches that were seeded in this process.
    """

    def __init__(self) -> None:
        self.active = False
        self.seeded = 0
        self._seed = 0
        self._in_worker: dict[int, int] = {}
        self._dataset: object = None
        self._own: list[Callable[[int], object]] = []
        """Generators that the data set which was read last holds itself."""
        self._after: tuple[Any, Any, Any] | None = None
        """The states after generators were last seeded."""
        self._drew = mmap.mmap(-1, 1)
        """Shared with forked workers: not zero if any sample drew random numbers."""
        self.by_key: Callable[[object, str], None] = guarded("sample seeds", self._by_key)

    def install(self, seed: int) -> None:
        """Watch how data sets with indices are read."""
        self._seed = seed
        fetchers: Any = torch.utils.data._utils.fetch
        replace(fetchers._MapDatasetFetcher, "fetch", self._watch)

    @property
    def drew(self) -> bool:
        """True if a seeded sample drew random numbers, in this process or in a forked worker."""
        return self._drew[0] > 0

    def _watch(self, original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        @transparent
        def fetch(fetcher: Any, indices: Any) -> Any:
            if not self._wanted(fetcher.dataset):
                return original(fetcher, indices)
            dataset, collate = fetcher.dataset, fetcher.collate_fn
            before = _states()
            fetcher.dataset = _SeededDataset(dataset, self)
            fetcher.collate_fn = _SeededCollate(collate, self, str(_first(indices)))
            self.by_key(dataset, str(_first(indices)))
            try:
                return original(fetcher, indices)
            finally:
                self._look_for_draws()
                fetcher.dataset, fetcher.collate_fn = dataset, collate
                _put_back(before)

        return fetch

    def _wanted(self, dataset: object) -> bool:
        if not self.active or threading.current_thread() is not threading.main_thread():
            return False
        worker = get_worker_info()
        if worker is None:
            self.seeded += 1
            return True
        loaded = self._in_worker.get(id(dataset), 0)
        self._in_worker[id(dataset)] = loaded + 1
        return loaded * worker.num_workers + worker.id < WORKER_BATCHES

    def _by_key(self, dataset: object, key: str) -> None:
        """Seed all generators by `key`: the index of a sample."""
        self._look_for_draws()
        number = zlib.crc32(f"{self._seed} {key}".encode())
        torch.default_generator.manual_seed(number)
        random.seed(number)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(number)
        if dataset is not self._dataset and dataset is not None:
            self._dataset, self._own = dataset, list(_own_generators(dataset))
        for set_seed in self._own:
            set_seed(number)
        self._after = None if self.drew else _states()

    def _look_for_draws(self) -> None:
        """See whether anything was drawn since generators were seeded; once is enough."""
        before, self._after = self._after, None
        if before is not None and not _alike(before, _states()):
            self._drew[0] = 1


class _SeededDataset:
    """A data set for one batch."""

    def __init__(self, dataset: Any, seeds: SampleSeeds) -> None:
        self._dataset, self._seeds = dataset, seeds

    @transparent
    def __getitem__(self, index: Any) -> Any:
        self._seeds.by_key(self._dataset, str(index))
        return self._dataset[index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)


class _SeededCollate:
    def __init__(self, collate: Callable[[Any], Any], seeds: SampleSeeds, key: str) -> None:
        self._collate, self._seeds, self._key = collate, seeds, key

    @transparent
    def __call__(self, samples: Any) -> Any:
        self._seeds.by_key(None, f"batch of {self._key}")
        return self._collate(samples)


def _own_generators(dataset: object) -> Iterator[Callable[[int], object]]:
    for _, value in attributes(dataset):
        method = ADAPTERS.get(type(value).__module__.partition(".")[0])
        found = getattr(value, method, None) if method else None
        if callable(found):
            yield found


def _first(indices: Any) -> Any:
    try:
        return indices[0]
    except (TypeError, IndexError, KeyError):
        return indices


def _states() -> tuple[Any, Any, Any]:
    numpy = sys.modules.get("numpy")
    return (
        torch.random.get_rng_state(),
        random.getstate(),
        None if numpy is None else numpy.random.get_state(),
    )


def _put_back(states: tuple[Any, Any, Any]) -> None:
    torch.random.set_rng_state(states[0])
    random.setstate(states[1])
    if states[2] is not None:
        sys.modules["numpy"].random.set_state(states[2])


def _alike(one: tuple[Any, Any, Any], other: tuple[Any, Any, Any]) -> bool:
    numpy = (repr(states[2] and states[2][2:]) for states in (one, other))
    return torch.equal(one[0], other[0]) and one[1] == other[1] and len(set(numpy)) == 1


SAMPLE_SEEDS = SampleSeeds()
"""Of this process."""
