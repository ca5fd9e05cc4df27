"""Arm hidden data parallelism in this process."""

from __future__ import annotations

import atexit
import os
from typing import Any

from gpurun.records.spec import Exchange, Parallel, Share
from gpurun.runtime.core import seeds
from gpurun.runtime.ddp import rank_files
from gpurun.runtime.ddp.rank_info import current_rank, show_one_device


def prepare(parallel: Parallel, trial: bool) -> None:
    """First stage, before torch is imported. `trial`: it is seeded as a trial anyway."""
    rank_files.install(current_rank().rank)
    show_one_device(parallel.shared_gpus)
    _compile_apart(current_rank().rank)
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
    rank_info = current_rank()
    if rank_info.world_size == 1:
        return
    from gpurun.runtime.ddp.divergence_check import DivergenceCheck
    from gpurun.runtime.ddp.hidden_ddp import HiddenDDP
    from gpurun.runtime.ddp.loader_sharding import LoaderSharding
    from gpurun.runtime.ddp.loss_scaling import LossScaling
    from gpurun.runtime.ddp.rank_rng import RankRNG

    rng = RankRNG(torch, rank_info.rank)
    ddp = HiddenDDP(torch, rank_info, rng, exchange, shared_gpus=parallel.shared_gpus > 0)
    sharding = LoaderSharding(torch, parallel.share, rank_info, rng, ddp)
    divergence = DivergenceCheck(torch, rank_info, ddp, lambda: sharding.order)
    rng.install()
    sharding.install()
    shared = parallel.share is Share.GLOBAL
    gradients = LossScaling(torch, rank_info, sharding, ddp, divergence, parallel.reduction, shared)
    gradients.install()
    ddp.install()
    divergence.install()
    atexit.register(ddp.end)
    atexit.register(divergence.ended)
    atexit.register(sharding.finish)
