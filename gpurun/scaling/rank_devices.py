"""Devices of the ranks of `--scale`: a GPU each, or a share of the cores without GPUs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpurun.errors import GpurunError
from gpurun.launch.rank_resources import threads_for

CORES = "CPU cores"
VISIBLE = "CUDA_VISIBLE_DEVICES"
THREADS = "OMP_NUM_THREADS"
OF_RANKS = (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
    "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT",
)  # fmt: skip
"""Variables of a job that gpurun itself is a rank of."""
OF_AGENTS = ("PET_", "TORCHELASTIC_")


@dataclass(frozen=True)
class RankDevices:
    """`name`: "NVIDIA H200" or "CPU cores". `gpus`: the words by which CUDA_VISIBLE_DEVICES names
    them, none on a machine without. `cores`: of all ranks together. `threads`: of each rank, as the
    user has set them, None where nobody has.
    """

    name: str
    gpus: tuple[str, ...]
    cores: float
    threads: str | None = None

    @property
    def count(self) -> int:
        """The number of ranks that can have their own device."""
        return len(self.gpus) or max(int(self.cores), 1)

    def check(self, counts: Sequence[int], oversubscribe: bool) -> None:
        """`GpurunError` that names counts for which there are too few devices, unless allowed."""
        above = [str(count) for count in counts if count > self.count]
        if not above or oversubscribe:
            return
        verb = "is" if len(above) == 1 else "are"
        raise GpurunError(
            f"--scale: {', '.join(above)} {verb} above the {self.count} {self._plural} that are "
            "there",
            "leave it out, or let ranks share devices with --oversubscribe",
        )

    @property
    def _plural(self) -> str:
        return self.name if not self.gpus else f"GPUs ({self.name})"

    def environment(self, ranks: int, base: Mapping[str, str]) -> dict[str, str]:
        """`base` for `ranks` ranks: their devices alone are visible, the cores divided among them.

        More ranks than GPUs take them in turn. A single rank on the CPU has what it always has, and
        the number of threads that the user sets stays.
        """
        kept = {k: v for k, v in base.items() if k not in OF_RANKS and not k.startswith(OF_AGENTS)}
        if self.gpus:
            kept[VISIBLE] = ",".join(self.gpus[i % len(self.gpus)] for i in range(ranks))
        if ranks > 1:
            kept.setdefault(THREADS, str(threads_for(ranks, self.cores)))
        return kept


def devices() -> RankDevices:
    """The machine's devices, within CUDA_VISIBLE_DEVICES, affinity mask and cgroup quota."""
    from gpurun.measure.machine import machine

    here, threads = machine(), os.environ.get(THREADS)
    if not here.gpus:
        return RankDevices(CORES, (), here.cores, threads)
    words = [word.strip() for word in os.environ.get(VISIBLE, "").split(",") if word.strip()]
    names = dict.fromkeys(here.gpus)
    found = words[: len(here.gpus)] if words else [str(i) for i in range(len(here.gpus))]
    return RankDevices(" and ".join(names), tuple(found), here.cores, threads)
