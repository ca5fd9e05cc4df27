"""Checks that all ranks still train the same model: now and then, and at the end of each.

Ranks that diverge (another learning rate or number of steps, an early stop on one rank only) would
wait for each other for ever. The check stops them and names the difference.
"""

from __future__ import annotations

import math
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.optim import Optimizer

from gpurun.runtime.ddp.hidden_ddp import HiddenDDP, parameters_of
from gpurun.runtime.ddp.rank_info import DIVERGED, RankInfo, or_stop_rank, stop_rank
from gpurun.runtime.ddp.stall_report import StallReport
from gpurun.runtime.observe.step_clock import CLOCK

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

EVERY = 256
"""Steps between two comparisons; the first are at 1, 2, 4, 8, ..."""
CALLS = (8, 64, 512)
"""Calls of the model after which ranks are compared if no optimizer has stepped."""
POLL_SECONDS = 1.0
BLAME_SECONDS = 2.0
"""A rank whose script has ended or failed reports it within this time; a killed one never does."""
EXIT_SECONDS = 5.0
"""Time for a failed rank to exit: the agent then ends the others and reports the cause."""
GRACE_SECONDS = 10.0
"""A rank may go on this long after another has ended, to write its records."""
ADVICE = "see the logs of the ranks; without --ddp the script runs on one device"


class DivergenceCheck:
    """Compares one rank with the others. `order`: returns the order of its data, as a number."""

    def __init__(self, rank_info: RankInfo, ddp: HiddenDDP, order: Callable[[], int]) -> None:
        self._order = order
        self._rank_info = rank_info
        self._ddp = ddp
        self._steps = 0
        self._calls = 0
        """Calls of the model before the first step."""
        self._ended = False
        self.stall_report = StallReport(rank_info)
        self._last: Callable[[], Optimizer | None] = lambda: None
        """The optimizer that made the last step; None once the script has dropped it."""
        self._watching: threading.Thread | None = None

    def install(self) -> None:
        """Compare before steps."""
        CLOCK.before_step.append(or_stop_rank("divergence check", self._before_step))
        self._ddp.on_call.append(or_stop_rank("divergence check", self._called))

    def _before_step(self, optimizer: Optimizer) -> None:
        self._steps = count = self._steps + 1
        self._last = weakref.ref(optimizer)
        if not self._ddp.keeps_ranks_alike():
            return
        if self._watching is None:
            self._watching = threading.Thread(target=self._watch, daemon=True)
            self._watching.start()
        if count & (count - 1) == 0 or count % EVERY == 0:
            self._compare(count)

    def _called(self) -> None:
        """A script may step by hand, with gradients that are never averaged."""
        if self._steps or not self._ddp.fed:
            return
        self._calls += 1
        if self._calls in CALLS and self._ddp.keeps_ranks_alike():
            self._compare(0)

    def _compare(self, count: int) -> None:
        rates = [g.get("lr", 0.0) for o in CLOCK.optimizers for g in o.param_groups]
        rate = float(sum(float(rate) for rate in rates))
        mine = [float(count), rate, float(self._order()), _sum(self._ddp.parameters())]
        device = next(self._ddp.parameters()).device
        own = torch.tensor(mine, dtype=torch.float64, device=device)
        every = [torch.empty_like(own) for _ in range(self._rank_info.world_size)]
        with self.stall_report.exchanging():
            torch.distributed.all_gather(every, own)
        compared = zip(*(one.tolist() for one in every), strict=True)
        names = ("number of steps", "learning rates", "order of the data", "weights")
        for name, values in zip(names, compared, strict=True):
            if len(set(values)) > 1 and not all(value != value for value in values):
                shown = ", ".join(f"{value:.9g}" for value in values)
                when = f"at step {count}" if count else "before any step of an optimizer"
                stop_rank(f"{when} the ranks differ in their {name}: {shown}", ADVICE, DIVERGED)

    def _store(self) -> Store:
        return torch.distributed.distributed_c10d._get_default_store()

    def ended(self) -> None:
        """Report that this rank's script is over; the last rank compares the weights of all."""
        self._ended = True
        if self._watching is None:
            return
        if getattr(sys, "last_value", None) is not None:  # the exception says more
            self._store().set(f"gpurun/failed/{self._rank_info.rank}", str(self._steps))
            return
        last = self._last()
        mine = math.nan if last is None else _sum(parameters_of(last))
        self._store().set(f"gpurun/weights/{self._rank_info.rank}", mine.hex())
        self._store().set(f"gpurun/ended/{self._rank_info.rank}", str(self._steps))
        theirs = {self._rank_info.rank: mine}
        for rank in self._gone():
            if int(self._store().get(f"gpurun/ended/{rank}")) == self._steps:
                theirs[rank] = float.fromhex(self._store().get(f"gpurun/weights/{rank}").decode())
        if len({value for value in theirs.values() if value == value}) > 1:
            shown = ", ".join(f"{value:.9g}" for _, value in sorted(theirs.items()))
            what = f"at their end, after step {self._steps}, the ranks differ in their weights"
            stop_rank(f"{what}: {shown}", ADVICE, DIVERGED)

    def blame(self) -> None:
        """An exchange of gradients failed: stop and say so if the cause is a rank that is done. A
        rank that failed reports the cause itself.
        """
        if self._watching is None:
            return
        deadline = time.monotonic() + BLAME_SECONDS
        while time.monotonic() < deadline:
            try:
                failed, gone = self._gone("failed"), self._gone()
            except Exception:
                return
            if failed:
                time.sleep(GRACE_SECONDS)  # the agent ends this one
                return
            if gone:
                self._parted(gone[0])
            time.sleep(POLL_SECONDS / 10)

    def _gone(self, how: str = "ended") -> list[int]:
        """The ranks whose scripts are over, or have failed."""
        others = (
            rank for rank in range(self._rank_info.world_size) if rank != self._rank_info.rank
        )
        return [rank for rank in others if self._store().check([f"gpurun/{how}/{rank}"])]

    def _parted(self, gone: int) -> None:
        last = int(self._store().get(f"gpurun/ended/{gone}"))
        time.sleep(EXIT_SECONDS)
        stop_rank(
            f"rank {gone} ended after step {last}, and rank {self._rank_info.rank} waits for it "
            f"in step {self._steps + 1}: they no longer train alike",
            ADVICE,
            DIVERGED,
        )

    def _watch(self) -> None:
        """Run in a thread: stop this rank if it waits for one that has ended."""
        since, at = 0.0, 0
        while not self._ended:
            time.sleep(POLL_SECONDS)
            try:
                self.stall_report.look(self._steps, self._store())
                gone = self._gone()
            except Exception:
                return  # the store is gone with the agent, which ends this rank too
            if not gone or self._ended:
                continue
            if not since or self._steps != at:
                since, at = time.monotonic(), self._steps
            elif time.monotonic() - since > GRACE_SECONDS:
                if int(self._store().get(f"gpurun/ended/{gone[0]}")) != self._steps:
                    self._parted(gone[0])  # else both are done, and this one has other work left


def _sum(parameters: Iterable[Tensor]) -> float:
    """Over all numbers, both parts of complex ones: alike to the last bit where the same updates
    were made."""
    total = 0.0
    for parameter in parameters:
        numbers = parameter.detach()
        if numbers.is_complex():
            numbers = numbers.real + numbers.imag
        total += float(numbers.sum(dtype=torch.float64))  # .double() would hold a second copy
    return total
