"""Trials of a script that is written for one device, on several ranks that it knows nothing of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gpurun.errors import GpurunError
from gpurun.isolation.box import Mode
from gpurun.launch.command import agent_command_line
from gpurun.launch.hidden import hidden_flags, in_layers, of_a_rank
from gpurun.launch.share import check_devices, shared_gpus
from gpurun.measure.events import ProcessLog
from gpurun.options import Options, Target
from gpurun.records.events import PARALLEL_REFUSED
from gpurun.records.spec import LossReduction, Parallel, Share


@dataclass(frozen=True)
class HiddenRanks:
    """So many ranks on this host, each a share of every batch. `torchrun`: the flags as typed.

    `layered`: ranks but the first write into layers of their own. `shared_gpus`, `reduction`: see
    `Parallel`.
    """

    torchrun: tuple[str, ...]
    ranks: int
    layered: bool
    shared_gpus: int = 0
    reduction: LossReduction | None = LossReduction.MEAN

    def parallel(self, seed: int) -> Parallel:
        """What the ranks of a trial are told: the global batch is the script's."""
        return Parallel(Share.GLOBAL, seed, self.shared_gpus, self.reduction)

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """The environment with the cores divided among the ranks."""
        return of_a_rank(environment, self.ranks)

    def argv(self, target: Target, run_dir: Path, cache: Path) -> tuple[str, ...]:
        """The agent's command line; rank 0 prints where the trial prints, the others do not."""
        flags, _ = hidden_flags(self.torchrun, run_dir / "ranks")
        if self.layered:
            target = in_layers(target, run_dir, (cache,))
        return agent_command_line(flags, target)


def hidden_ranks(options: Options, mode: Mode) -> HiddenRanks | None:
    """Those that `--ddp` asks for; None where it does not.

    `GpurunError` where there are too few devices, or where ranks would write the same files and
    nobody allowed that.
    """
    if not options.ddp:
        return None
    flags, ranks = hidden_flags(options.torchrun, None)
    gpus = check_devices(ranks, options.oversubscribe)
    layered = mode is Mode.OVERLAY
    if not layered and ranks > 1 and not options.shared_writes:
        raise GpurunError(
            "ranks would write the same files, for trials are not isolated by overlay mounts here",
            "allow it with --shared-writes if the script writes nothing, or the same in every rank",
        )
    reduction = options.loss_reduction
    return HiddenRanks(flags, ranks, layered, shared_gpus(ranks, gpus), reduction)


def refusal(logs: tuple[ProcessLog, ...]) -> str | None:
    """Why the script cannot be run as one of several, in a line; None if no rank said so."""
    told = (x.detail for log in logs for x in log.traits if x.trait == PARALLEL_REFUSED)
    detail = next(told, None)
    return None if detail is None else f"--ddp: {detail.splitlines()[0].removeprefix('gpurun: ')}"
