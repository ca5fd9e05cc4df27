"""Random numbers of ranks: equal where ranks must agree, different where they should differ.

Outside training steps all ranks draw alike, as a single process would: first weights, a split of
the data, the order of an epoch. Inside a step each rank draws apart: dropout, augmentation, noise.
A step begins when a training loader is asked for a batch, and ends with the loader's epoch.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from gpurun.records.frames import transparent
from gpurun.runtime.core.patching import guarded, replace
from gpurun.runtime.core.post_import import when_imported

STRIDE = 0x9E3779B97F4A7C15
"""The distance between seeds of ranks (the golden ratio of 2**64), modulo 2**63."""


class RankRNG:
    """The generators of this rank."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._apart = False
        self._seeding = False
        """True if a generator is seeded by us."""
        self._own: dict[str, Any] = {}
        """States of the generators when the last step was left."""
        self._alike: dict[str, Any] = {}
        """States of the generators when the running step was entered."""
        self._seeds: dict[str, Callable[[int], Any]] = {}
        """What seeds each generator, unwatched."""

    def install(self) -> None:
        """Watch the seeds that the script sets."""
        cuda: Any = torch.cuda
        self._seeds.update(torch=torch.manual_seed, cuda=cuda.manual_seed_all, random=random.seed)
        for owner in (torch, torch.random):
            self._watch("torch", owner, "manual_seed")
        for owner in (cuda, cuda.random):
            self._watch("cuda", owner, "manual_seed")
            self._watch("cuda", owner, "manual_seed_all")
        self._watch("random", random, "seed")
        when_imported("numpy.random", self._watch_numpy)

    def draw_apart(self) -> None:
        """Draw differently from the other ranks from now on."""
        if self._apart:
            return
        self._apart = True
        self._alike = self._states()
        seed = int(torch.initial_seed())
        for name in self._alike:
            if name in self._own:
                self._restore({name: self._own[name]})
            else:
                self._seed_own(name, seed)

    def draw_alike(self) -> None:
        """Draw the same as the other ranks from now on."""
        if self._apart:
            self._apart = False
            self._own = self._states()
            self._restore(self._alike)
            if "cuda" in self._own and "cuda" not in self._alike:  # CUDA started meanwhile
                self._seed("cuda", int(torch.initial_seed()))

    @contextmanager
    def apart_inside(self) -> Iterator[None]:
        """Draw apart inside the context."""
        if self._apart:
            yield
            return
        self.draw_apart()
        try:
            yield
        finally:
            self.draw_alike()

    @contextmanager
    def alike_inside(self) -> Iterator[None]:
        """Draw alike inside the context, on all ranks that enter it equally often."""
        if not self._apart:
            yield
            return
        self.draw_alike()
        try:
            yield
        finally:
            self.draw_apart()

    def own_seed(self, seed: int) -> int:
        """Derive this rank's own seed from one that all ranks share."""
        return (seed + STRIDE * self._rank) % 2**63

    def _watch_numpy(self, module: ModuleType) -> None:
        seed = module.seed
        self._seeds["numpy"] = lambda value: seed(value % 2**32)
        self._watch("numpy", module, "seed")

    def _watch(self, generator: str, owner: object, name: str) -> None:
        note = guarded("seed of ranks", self._seeded)

        def watch(original: Callable[..., Any]) -> Callable[..., Any]:
            @transparent
            def seed(*args: object, **kwargs: object) -> Any:
                result = original(*args, **kwargs)
                value = args[0] if args else next(iter(kwargs.values()), None)
                if isinstance(value, int):
                    note(generator, value)
                return result

            return seed

        replace(owner, name, watch)

    def _seeded(self, name: str, seed: int) -> None:
        """Forget the states before: a script that seeds wants the same numbers on every rank."""
        if self._seeding:
            return
        if self._apart:
            seeded = {k: v for k, v in self._states().items() if k == name}
            self.draw_alike()
            self._restore(seeded)
        self._own.pop(name, None)

    def _seed_own(self, name: str, seed: int) -> None:
        """Seed one generator as this rank's own; rank 0 goes on as a single process would."""
        if self._rank:
            self._seed(name, self.own_seed(seed))

    def _seed(self, name: str, seed: int) -> None:
        self._seeding = True
        try:
            self._seeds[name](seed)  # of torch: CUDA's generators too
        finally:
            self._seeding = False

    def _states(self) -> dict[str, Any]:
        return {name: state() for name, state, _ in _generators()}

    def _restore(self, states: dict[str, Any]) -> None:
        for name, _, restore in _generators():
            if name in states:
                restore(states[name])


def _generators() -> Iterator[tuple[str, Callable[[], Any], Callable[[Any], Any]]]:
    """The generators that there are by now: a name, what tells the state, and what sets it."""
    yield "torch", torch.get_rng_state, torch.set_rng_state
    yield "random", random.getstate, random.setstate
    if torch.cuda.is_initialized():
        yield "cuda", torch.cuda.get_rng_state, torch.cuda.set_rng_state
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        yield "numpy", numpy.get_state, numpy.set_state
