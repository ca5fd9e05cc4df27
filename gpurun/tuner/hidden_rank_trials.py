"""Trials of a script for one device on several ranks (`--ddp`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpurun.arguments.options import Options
from gpurun.errors import GpurunError
from gpurun.isolation.isolation_mode import Mode
from gpurun.launch.hidden_ranks import hidden_flags, rank_environment
from gpurun.launch.rank_resources import check_devices, shared_gpus
from gpurun.records.spec import LossReduction, Parallel, Share
from gpurun.trials.launch_request import Ranks


@dataclass(frozen=True)
class HiddenRanks:
    """So many ranks on this host, each a share of every batch. `torchrun`: the flags as typed.

    `shared_gpus`, `reduction`: see `Parallel`.
    """

    torchrun: tuple[str, ...]
    count: int
    shared_gpus: int = 0
    reduction: LossReduction | None = LossReduction.MEAN

    def ranks(self, run_dir: Path, seed: int) -> Ranks:
        """The ranks of a trial: rank 0 prints where the script prints, and the batch is the
        script's."""
        flags, _ = hidden_flags(self.torchrun, run_dir / "ranks")
        return Ranks(flags, Parallel(Share.GLOBAL, seed, self.shared_gpus, self.reduction))

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment with the cores divided among the ranks."""
        return rank_environment(environment, self.count)


def hidden_ranks(options: Options, mode: Mode) -> HiddenRanks | None:
    """The hidden ranks of `--ddp`; None without it.

    `GpurunError` where there are too few devices, or where ranks would write the same files and
    nobody allowed that.
    """
    if not options.ddp:
        return None
    flags, ranks = hidden_flags(options.torchrun, None)
    gpus = check_devices(ranks, options.oversubscribe)
    if mode is not Mode.OVERLAY and ranks > 1 and not options.shared_writes:
        raise GpurunError(
            "ranks would write the same files, because trials are not isolated by overlay mounts "
            "here",
            "allow it with --shared-writes if the script writes nothing, or the same in every rank",
        )
    reduction = options.loss_reduction
    return HiddenRanks(flags, ranks, shared_gpus(ranks, gpus), reduction)
