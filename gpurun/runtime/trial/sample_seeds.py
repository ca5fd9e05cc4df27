"""Seeds each sample of audited batches, so that whoever loads it draws the same numbers.

What a data set draws depends on the process that loads it, and on all draws before. So a sample is
fetched under generators seeded by (seed, pass, index), and a batch is collated under ones seeded by
(seed, pass, batch). Then all states are put back: the script goes on as if nothing had been drawn.

Generators that a data set holds itself are not known. Their draws differ in worker processes, and
the guard sees other samples: that is how it is in training, too.
"""

from __future__ import annotations

import copy
import os
import random
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, get_worker_info

from gpurun.identity_map import IdentityMap
from gpurun.knobs.loading.dataset_attributes import attributes
from gpurun.records.frames import transparent
from gpurun.runtime.core.patching import guarded, replace
from gpurun.runtime.observe.watched_loaders import LOADERS

OVER, DREW = "audited", "drew"
"""Files in the control folder, which worker processes see: the audit is over; a sample drew."""
ADAPTERS = {"albumentations": "set_random_seed", "monai": "set_random_state"}
"""Libraries whose transforms have generators of their own, and the method that seeds them."""


class SampleSeeds:
    """`seeded`: batches that were seeded in this process."""

    def __init__(self) -> None:
        self.seeded = 0
        self._active = False
        self._seed = 0
        self._control: Path | None = None
        self.copies: dict[int, Any] = {}
        """By number, of the loaders that were opened in the audit: see `copy_of`."""
        self._begun: IdentityMap[int] = IdentityMap()
        """Of each loader: how many passes over it were begun."""
        self._pass, self._reads_since = 1, 0
        """The pass that was begun last, and the worker process that has begun one."""
        self._dataset: object = None
        self._own: list[Callable[[int], object]] = []
        """What seeds the generators in the data set that was read last."""
        self._after: tuple[Any, Any, Any] | None = None
        """The states after generators were last seeded."""
        self._drew = False
        self._by_key: Callable[[object, str], None] = guarded("sample seeds", self._seed_by)
        self._begin: Callable[[Any], None] = guarded("sample seeds", self._begin_pass)

    def install(self, seed: int, control: Path) -> None:
        """Watch how data sets are read."""
        self._seed, self._control = seed, control
        replace(DataLoader, "__iter__", self._watch_iter)
        fetchers: Any = torch.utils.data._utils.fetch
        for kind in (fetchers._MapDatasetFetcher, fetchers._IterableDatasetFetcher):
            replace(kind, "__init__", self._watch_init)
            replace(kind, "fetch", self._watch_fetch)

    def begin(self) -> None:
        """From now on samples are seeded, in this process and in loader workers."""
        self._active = True

    def end(self) -> None:
        """The audit is over, for workers too."""
        self._active = False
        self.copies.clear()
        self._touch(OVER)

    @property
    def drew(self) -> bool:
        """True if a seeded sample drew random numbers, in this process or in a worker."""
        return self._drew or (self._control is not None and (self._control / DREW).exists())

    # -- what is watched -----------------------------------------------------------------------

    def _watch_iter(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        @transparent
        def __iter__(loader: Any) -> Any:
            self._begin(loader)
            return original(loader)

        return __iter__

    def _begin_pass(self, loader: Any) -> None:
        self._pass = (self._begun.get(loader) or 0) + 1
        self._begun[loader] = self._pass
        state = LOADERS.states.get(loader)
        if self._active and state is not None and state.number not in self.copies:
            self.copies[state.number] = copy_of(loader)

    def _watch_init(self, original: Callable[..., None]) -> Callable[..., None]:
        """torch makes a fetcher for each pass, in each process that loads."""

        @transparent
        def __init__(fetcher: Any, dataset: Any, *args: Any) -> None:
            fetcher._gpurun_pass, fetcher._gpurun_batches = self._pass_of_fetcher(), 0
            if not self._wanted():
                original(fetcher, dataset, *args)
                return
            before = _states()
            self._by_key(dataset, f"{fetcher._gpurun_pass} opened")
            try:
                original(fetcher, dataset, *args)  # opens a stream, which may draw
            finally:
                self._look_for_draws()
                _put_back(before)

        return __init__

    def _pass_of_fetcher(self) -> int:
        """A worker that lives on is not told that a pass begins, but makes a fetcher for it."""
        if get_worker_info() is not None:
            self._pass += self._reads_since == os.getpid()
            self._reads_since = os.getpid()
        return self._pass

    def _watch_fetch(self, original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        @transparent
        def fetch(fetcher: Any, indices: Any) -> Any:
            if not self._wanted():
                return original(fetcher, indices)
            self.seeded += 1
            fetcher._gpurun_batches += 1
            dataset, collate, before = fetcher.dataset, fetcher.collate_fn, _states()
            begun = fetcher._gpurun_pass
            stream = hasattr(fetcher, "dataset_iter")
            batch = f"{begun} {fetcher._gpurun_batches if stream else indices}"

            @transparent
            def collated(samples: Any) -> Any:
                self._by_key(None, f"{batch} collated")
                return collate(samples)

            fetcher.dataset = _SeededDataset(dataset, self._by_key, begun)
            fetcher.collate_fn = collated
            self._by_key(dataset, batch)
            try:
                return original(fetcher, indices)
            finally:
                self._look_for_draws()
                fetcher.dataset, fetcher.collate_fn = dataset, collate
                _put_back(before)

        return fetch

    def _wanted(self) -> bool:
        if self._control is None or threading.current_thread() is not threading.main_thread():
            return False
        if get_worker_info() is None:
            return self._active
        return not os.path.exists(self._control / OVER)

    # -- seeds ---------------------------------------------------------------------------------

    def _seed_by(self, dataset: object, key: str) -> None:
        """Seed all generators by a pass and what is loaded in it. `dataset`: None if known."""
        self._look_for_draws()
        number = zlib.crc32(f"{self._seed} {key}".encode())
        # states, for a watched `seed` is the script's: ranks would leave their step
        torch.default_generator.manual_seed(number)
        random.setstate(random.Random(number).getstate())
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.set_state(numpy.random.RandomState(number).get_state())
        if dataset is not self._dataset and dataset is not None:
            self._dataset, self._own = dataset, list(_own_generators(dataset))
        for set_seed in self._own:
            set_seed(number)
        self._after = None if self._drew else _states()

    def _look_for_draws(self) -> None:
        """See whether anything was drawn since generators were seeded; once is enough."""
        before, self._after = self._after, None
        if before is not None and not _alike(before, _states()):
            self._drew = True
            self._touch(DREW)

    def _touch(self, name: str) -> None:
        if self._control is not None:
            with suppress(OSError):
                self._control.mkdir(parents=True, exist_ok=True)
                (self._control / name).touch()


def copy_of(loader: Any) -> Any:
    """A loader of the same data set and settings, which holds no workers and pins nothing."""
    twin = copy.copy(loader)
    twin.__dict__.update(_iterator=None, pin_memory=False)
    return twin


class _SeededDataset:
    """A data set for one batch."""

    def __init__(self, dataset: Any, by_key: Callable[[object, str], None], begun: int) -> None:
        self._dataset, self._by_key, self._pass = dataset, by_key, begun

    @transparent
    def __getitem__(self, index: Any) -> Any:
        self._by_key(self._dataset, f"{self._pass} {index}")
        return self._dataset[index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)


def _own_generators(dataset: object) -> Iterator[Callable[[int], object]]:
    for _, value in attributes(dataset):
        method = ADAPTERS.get(type(value).__module__.partition(".")[0])
        found = getattr(value, method, None) if method else None
        if callable(found):
            yield found


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
    numpy = [states[2] and (states[2][1].tobytes(), *states[2][2:]) for states in (one, other)]
    return torch.equal(one[0], other[0]) and one[1] == other[1] and numpy[0] == numpy[1]


SAMPLE_SEEDS = SampleSeeds()
"""Of this process."""
