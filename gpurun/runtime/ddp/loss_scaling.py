"""Scales the loss of a rank's shard, so that averaged gradients are those of the whole batch.

DistributedDataParallel averages gradients over ranks. A mean over samples is weighted by the rank's
share of the samples; a sum is multiplied by the number of ranks. Trials (`gpurun/ddp`) have shown
before the launch which of the two a loss is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.optim import Optimizer

from gpurun.knobs.callers import users_line
from gpurun.records.events import TraitEvent
from gpurun.records.spec import LossReduction
from gpurun.runtime.core.patching import replace, stands_in
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.ddp.divergence_check import DivergenceCheck
from gpurun.runtime.ddp.hidden_ddp import HiddenDDP
from gpurun.runtime.ddp.loader_sharding import LoaderSharding
from gpurun.runtime.ddp.rank_info import RankInfo, or_stop_rank, stop_rank
from gpurun.runtime.observe.backward_passes import Tensors
from gpurun.runtime.observe.step_clock import CLOCK


@dataclass
class LossScaling:
    """Scales losses, and has the gradients averaged after each backward pass.

    `shared`: each rank has a part of every batch; else each has whole ones, and nothing is scaled.
    `reduction`: how the loss of a batch is made of its samples'; None if that was not measured.
    """

    rank_info: RankInfo
    sharding: LoaderSharding
    ddp: HiddenDDP
    divergence: DivergenceCheck
    reduction: LossReduction | None
    shared: bool
    _recorded: bool = field(init=False, default=False)

    def install(self) -> None:
        """Stand before `torch.autograd.backward`, in which `Tensor.backward` ends."""
        replace(torch.autograd, "backward", self._watch)
        CLOCK.before_step.append(or_stop_rank("the loss", self._before_step))

    def _before_step(self, _: Optimizer) -> None:
        """A step without a backward pass that was watched: nothing of it was verified."""
        if self.shared and self.reduction is None and self.ddp.active():
            self._stop_unverified()

    @stands_in
    def _watch(
        self, original: Callable[..., Any], tensors: Tensors, *args: object, **kwargs: object
    ) -> Any:
        try:
            compiling = torch.compiler.is_dynamo_compiling()
            if compiling or self.ddp.in_backward() or not self.ddp.active():
                return original(tensors, *args, **kwargs)
            with self.divergence.stall_report.exchanging():
                scaled = self._scaled(tensors)
                self.ddp.before_backward()
                result = original(scaled, *args, **kwargs)
                self.ddp.after_backward()
            self.sharding.went_back()
            return result
        except RuntimeError:
            self.divergence.blame()
            raise

    def _stop_unverified(self) -> NoReturn:
        stop_rank(
            "gpurun took the script for a distributed one, which it is not: the loss "
            "reduction was not measured",
            "set it with --loss-reduction mean or sum, or run it without --ddp",
        )

    def _scaled(self, tensors: Tensors) -> Tensors:
        """The loss, weighted for the average over ranks."""
        if not self.shared:
            return tensors
        if self.reduction is None:
            self._stop_unverified()
        shard = self.sharding.shard
        if shard is None:
            line = users_line(sys._getframe(1))
            stop_rank(
                f"no DataLoader feeds the training{f' ({line})' if line else ''}: the script makes "
                "its batches itself, and no share of them can be given to each rank",
                "read them through a DataLoader, or run it without --ddp",
            )
        if not self._recorded:
            self._recorded = True
            RECORDER.event(TraitEvent(trait="loss_reduction", detail=self.reduction.value))
        summed = self.reduction is LossReduction.SUM and not shard.repeated
        factor = (
            float(self.rank_info.world_size) if summed else shard.weight(self.rank_info.world_size)
        )
        if not isinstance(tensors, Tensor):
            return [t if t.grad_fn is None else t * factor for t in tensors]
        return tensors if tensors.grad_fn is None else tensors * factor
