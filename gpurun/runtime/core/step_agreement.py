"""The ranks on one host agree at which step something begins or ends.

Ranks exchange gradients in each step: a rank that stops or waits alone makes the others fail or
wait. So one rank decides for all.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch


def rank_and_size() -> tuple[int, int]:
    """The rank of this process and the number of ranks; 0 and 1 without a process group."""
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def ranks_on_this_host(size: int) -> int:
    """How many of `size` ranks run on this host, as far as the launcher says."""
    here = os.environ.get("LOCAL_WORLD_SIZE", "")
    return min(size, int(here)) if here.isdigit() else size


class StepAgreement:
    """The agreement about one thing ("stop"), by a file of that name in the control folder.

    The host's first rank, once it has a reason, names the next step: no rank can be past it unless
    its host runs ahead of its device, and then it follows where it is.
    """

    def __init__(self, control: Path, about: str) -> None:
        self._control = control
        self._file = control / about

    def agreed(self, count: int, reason: str | None) -> str | None:
        """The reason if it holds from step `count` on, None if not. `reason`: this rank's own."""
        if rank_and_size()[1] == 1:
            return reason
        if self.leads and reason is not None and not self._file.exists():
            self._control.mkdir(parents=True, exist_ok=True)
            draft = self._file.with_name(f"{self._file.name}.new")
            draft.write_text(f"{count + 1} {reason}")
            draft.rename(self._file)
            return None
        try:
            first, agreed = self._file.read_text().split()
        except FileNotFoundError:
            return None
        return agreed if count >= int(first) else None

    @property
    def ahead(self) -> int:
        """Steps from the one in which this rank has its reason to the one that is agreed."""
        return 0 if rank_and_size()[1] == 1 else 1

    @property
    def leads(self) -> bool:
        """True if this rank decides: rank 0, or on a further host its first rank."""
        rank, size = rank_and_size()
        if ranks_on_this_host(size) < size:
            return os.environ.get("LOCAL_RANK") == "0"
        return rank == 0
