"""Arm hidden data parallelism in this process."""

from __future__ import annotations

import atexit
import os
from typing import Any

from gpurun.records.spec import Exchange, Parallel, Share
from gpurun.runtime.core import seeds
from gpurun.runtime.parallel import files
from gpurun.runtime.parallel.place import place, show_one_device


def prepare(parallel: Parallel, trial: bool) -> None:
    """First stage, before torch is imported. `trial`: it is seeded as a trial anyway."""
    files.install(place().rank)
    show_one_device(parallel.shared_gpus)
    _compile_apart(place().rank)
    if not trial:
        seeds.seed_everything(parallel.seed, 0)


def _compile_apart(rank: int) -> None:
    """Leave each rank a cache of compiled kernels: locks do not hold between their layers."""
    if rank:
        import tempfile

        user = os.environ.get("USER", str(os.getuid()))
        folder = os.path.join(tempfile.gettempdir(), f"torchinductor_{user}_rank{rank}")
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", folder)


def arm(parallel: Parallel, exchange: Exchange, torch: Any) -> None:
    """Second stage, before anything else looks at torch."""
    where = place()
    if where.size == 1:
        return
    from gpurun.runtime.parallel.agreement import Agreement
    from gpurun.runtime.parallel.draws import Draws
    from gpurun.runtime.parallel.gradients import Gradients
    from gpurun.runtime.parallel.replicas import Replicas
    from gpurun.runtime.parallel.sharding import Sharding

    draws = Draws(torch, where.rank)
    replicas = Replicas(torch, where, draws, exchange, shared_gpus=parallel.shared_gpus > 0)
    sharding = Sharding(torch, parallel.share, where, draws, replicas)
    agreement = Agreement(torch, where, replicas, lambda: sharding.order)
    draws.install()
    sharding.install()
    shared = parallel.share is Share.GLOBAL
    gradients = Gradients(torch, where, sharding, replicas, agreement, parallel.reduction, shared)
    gradients.install()
    replicas.install()
    agreement.install()
    atexit.register(replicas.end)
    atexit.register(agreement.ended)
    atexit.register(sharding.finish)
