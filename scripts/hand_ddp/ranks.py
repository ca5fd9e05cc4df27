"""What the hand-written data-parallel scripts share: the rank's device, and a rate to print."""

from __future__ import annotations

import os
import time
from types import TracebackType

import torch
import torch.distributed as dist


class Ranks:
    """The process group of torchrun's environment; a context, left when training is over."""

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        local = int(os.environ["LOCAL_RANK"])
        on_gpu = torch.cuda.is_available()
        self.device = torch.device("cuda", local) if on_gpu else torch.device("cpu")

    def __enter__(self) -> Ranks:
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)
        dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        dist.destroy_process_group()

    @property
    def device_ids(self) -> list[torch.device] | None:
        """What DistributedDataParallel wants to know."""
        return [self.device] if self.device.type == "cuda" else None


class Rate:
    """Samples a second of all ranks, from the step after `warmup` to the last."""

    def __init__(self, ranks: Ranks, warmup: int = 20) -> None:
        self._ranks = ranks
        self._warmup = warmup
        self._steps = 0
        self._began = 0.0

    def step(self) -> None:
        """After each step."""
        self._steps += 1
        if self._steps == self._warmup:
            self._wait()
            self._began = time.perf_counter()

    def tell(self, batch_size: int) -> None:
        """Print it, on the first rank."""
        self._wait()
        seconds = time.perf_counter() - self._began
        rate = (self._steps - self._warmup) * batch_size * self._ranks.size / seconds
        if self._ranks.rank == 0:
            print(f"samples_per_second={rate:.2f}", flush=True)

    def _wait(self) -> None:
        if self._ranks.device.type == "cuda":
            torch.cuda.synchronize()
        dist.barrier()
