"""Profilers: one file a source. Each file that defines one is found by walking this folder."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from functools import cache

from gpurun.errors import GpurunError
from gpurun.profilers.api import Profiler


@cache
def all_profilers() -> tuple[Profiler, ...]:
    """Every profiler of this folder, in ascending order of `order`."""
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)
    found = [kind() for kind in Profiler.__subclasses__() if kind.__module__.startswith(__name__)]
    return tuple(sorted(found, key=lambda each: each.order))


def chosen_profilers(wanted: Sequence[str] | None) -> tuple[Profiler, ...]:
    """The profilers of these names; of None those that need no program of NVIDIA's."""
    if wanted is None:
        return tuple(each for each in all_profilers() if each.tool is None)
    names = {each.name: each for each in all_profilers()}
    unknown = [word for word in wanted if word not in names]
    if unknown:
        raise GpurunError(
            f"--sources: there is no source {unknown[0]!r}", f"choose of {','.join(names)}"
        )
    return tuple(each for each in all_profilers() if each.name in wanted)
