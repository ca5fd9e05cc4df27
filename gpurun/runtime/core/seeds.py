"""Trials are seeded alike: each generator at its import, the script's own seeds by an offset."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from gpurun.runtime.core.patching import replace
from gpurun.runtime.core.post_import import when_imported

NUMPY_SEEDS = 2**32


def seed_everything(seed: int, offset: int) -> None:
    """Seed python, numpy and torch as each is imported; shift seeds that the script sets later."""
    start = seed + offset

    def random_is_here(module: ModuleType) -> None:
        module.seed(start)
        _shift(module, "seed", offset)

    def numpy_is_here(module: ModuleType) -> None:
        module.seed(start % NUMPY_SEEDS)
        _shift(module, "seed", offset)
        replace(module, "default_rng", lambda original: _default_rng(original, start, offset))

    def torch_is_here(module: ModuleType) -> None:
        module.manual_seed(start)
        for owner, name in ((module, "manual_seed"), (module.random, "manual_seed")):
            _shift(owner, name, offset)

    when_imported("random", random_is_here)
    when_imported("numpy.random", numpy_is_here)
    when_imported("torch", torch_is_here)


def generator_state() -> int:
    """A checksum of the state of torch's generators: another one once numbers were drawn."""
    import torch

    number = zlib.crc32(torch.random.get_rng_state().numpy().tobytes())
    if torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            if torch.cuda.default_generators:
                state = torch.cuda.default_generators[device].get_state()
                number = zlib.crc32(state.numpy().tobytes(), number)
    return number


def _shift(owner: object, name: str, offset: int) -> None:
    if offset:
        replace(owner, name, lambda original: _shifted(original, offset))


def _shifted(original: Callable[..., Any], offset: int) -> Callable[..., Any]:
    def seed(value: object = None, *args: object, **kwargs: object) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            value = (value + offset) % NUMPY_SEEDS
        return original(value, *args, **kwargs)

    return seed


def _default_rng(original: Callable[..., Any], start: int, offset: int) -> Callable[..., Any]:
    def default_rng(seed: object = None) -> Any:
        if seed is None:
            seed = start
        elif isinstance(seed, int):
            seed = (seed + offset) % NUMPY_SEEDS
        return original(seed)

    return default_rng
