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

    def install(self) -> None:
        """Watch the seeds that the script sets."""
        self._seed_torch = torch.manual_seed
        for owner in (torch, torch.random):
            replace(owner, "manual_seed", lambda original: self._watch(original, "torch"))
        cuda: ModuleType = torch.cuda
        self._seed_cuda = cuda.manual_seed_all
        for name in ("manual_seed", "manual_seed_all"):
            for owner in (cuda, cuda.random):
                replace(owner, name, lambda original: self._watch(original, "cuda"))
        self._seed_random = random.seed
        replace(random, "seed", lambda original: self._watch(original, "random"))
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
        self._seed_numpy = module.seed
        replace(module, "seed", lambda original: self._watch(original, "numpy"))

    def _watch(self, original: Callable[..., Any], name: str) -> Callable[..., Any]:
        note = guarded("seed of ranks", self._seeded)

        @transparent
        def seed(*args: object, **kwargs: object) -> Any:
            result = original(*args, **kwargs)
            value = args[0] if args else next(iter(kwargs.values()), None)
            if isinstance(value, int):
                note(name, value)
            return result

        return seed

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
            if name == "torch":
                self._seed_torch(seed)  # CUDA's generators too
            elif name == "cuda":
                self._seed_cuda(seed)
            elif name == "random":
                self._seed_random(seed)
            else:
                self._seed_numpy(seed % 2**32)
        finally:
            self._seeding = False

    def _states(self) -> dict[str, Any]:
        states = {"torch": torch.get_rng_state(), "random": random.getstate()}
        if torch.cuda.is_initialized():
            states["cuda"] = torch.cuda.get_rng_state()
        numpy = sys.modules.get("numpy.random")
        if numpy is not None:
            states["numpy"] = numpy.get_state()
        return states

    def _restore(self, states: dict[str, Any]) -> None:
        if "torch" in states:
            torch.set_rng_state(states["torch"])
        if "cuda" in states:
            torch.cuda.set_rng_state(states["cuda"])
        if "random" in states:
            random.setstate(states["random"])
        if "numpy" in states:
            sys.modules["numpy.random"].set_state(states["numpy"])
