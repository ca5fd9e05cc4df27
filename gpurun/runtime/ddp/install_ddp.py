"""Hidden data parallelism in this process: what is prepared before torch is imported, and what is
installed once it is."""

from __future__ import annotations

import atexit
import os

from gpurun.records.spec import Exchange, Parallel, Share
from gpurun.runtime.core import seeds
from gpurun.runtime.ddp import rank_zero_last
from gpurun.runtime.ddp.rank_info import current_rank, show_one_device
from gpurun.runtime.trial import folder_renames


def prepare(parallel: Parallel, run_dir: str, *, trial: bool, in_child: bool) -> None:
    """Give this rank its turn with files, its device and its seeds. A `trial` is seeded by itself.

    `in_child`: the script has started this process in a rank.
    """
    rank = current_rank().rank
    if rank:
        folder_renames.install()
        _compile_apart(rank)
    if not in_child:
        rank_zero_last.install(rank, run_dir)
    show_one_device(parallel.shared_gpus)
    if not trial:
        seeds.seed_everything(parallel.seed, 0)


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
    from gpurun.runtime.ddp.divergence_check import DivergenceCheck
    from gpurun.runtime.ddp.hidden_ddp import HiddenDDP
    from gpurun.runtime.ddp.loader_sharding import LoaderSharding
    from gpurun.runtime.ddp.loss_scaling import LossScaling
    from gpurun.runtime.ddp.rank_rng import RankRNG

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
    atexit.register(rank_zero_last.MEETINGS.end)


def _compile_apart(rank: int) -> None:
    """Leave each rank a cache of compiled kernels: locks do not hold between their layers."""
    import tempfile

    user = os.environ.get("USER", str(os.getuid()))
    folder = os.path.join(tempfile.gettempdir(), f"torchinductor_{user}_rank{rank}")
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", folder)
