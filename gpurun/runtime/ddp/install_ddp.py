"""Install hidden data parallelism in this process, once torch is imported."""

from __future__ import annotations

import atexit

from gpurun.records.spec import Exchange, Parallel, Share
from gpurun.runtime.ddp.divergence_check import DivergenceCheck
from gpurun.runtime.ddp.hidden_ddp import HiddenDDP
from gpurun.runtime.ddp.loader_sharding import LoaderSharding
from gpurun.runtime.ddp.loss_scaling import LossScaling
from gpurun.runtime.ddp.rank_info import current_rank
from gpurun.runtime.ddp.rank_rng import RankRNG
from gpurun.runtime.ddp.rank_zero_last import MEETINGS


def install(
    parallel: Parallel, exchange: Exchange, *, in_child: bool, draw_alike: bool = False
) -> None:
    """Install every part, before anything else patches torch. One rank alone needs none.

    `in_child`: the script has started this process in a rank. It exchanges nothing. `draw_alike`:
    each rank draws as rank 0 does, so that ranks can be compared with one process.
    """
    rank_info = current_rank()
    if rank_info.world_size == 1:
        return
    rng = RankRNG(0 if draw_alike else rank_info.rank)
    ddp = HiddenDDP(rank_info, rng, exchange, shared_gpus=parallel.shared_gpus > 0)
    if in_child:
        ddp.pid = None
    sharding = LoaderSharding(parallel.share, rank_info, rng, ddp)
    divergence = DivergenceCheck(rank_info, ddp, lambda: sharding.order)
    rng.install()
    sharding.install()
    shared = parallel.share is Share.GLOBAL
    LossScaling(rank_info, sharding, ddp, divergence, parallel.reduction, shared).install()
    ddp.install()
    divergence.install()
    atexit.register(ddp.end)
    atexit.register(divergence.ended)
    atexit.register(sharding.finish)
    atexit.register(MEETINGS.end)
