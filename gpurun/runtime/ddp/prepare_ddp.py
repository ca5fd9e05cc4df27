"""Prepare hidden data parallelism before torch is imported."""

from __future__ import annotations

import os

from gpurun.records.spec import Parallel
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
    if not in_child:
        rank_zero_last.install(rank, run_dir)
    show_one_device(parallel.shared_gpus)
    _compile_apart(rank)
    if not trial:
        seeds.seed_everything(parallel.seed, 0)


def _compile_apart(rank: int) -> None:
    """Leave each rank a cache of compiled kernels: locks do not hold between their layers."""
    if rank:
        import tempfile

        user = os.environ.get("USER", str(os.getuid()))
        folder = os.path.join(tempfile.gettempdir(), f"torchinductor_{user}_rank{rank}")
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", folder)
