"""The gradients of a rank's share, made those of the whole batch.

Losses are scaled as they are differentiated: a mean over a share counts by the share's size, a sum
as often as there are ranks, for DistributedDataParallel then averages over ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpurun.records.events import TraitEvent
from gpurun.records.frames import drop_frame
from gpurun.runtime.parallel.agreement import Agreement
from gpurun.runtime.parallel.place import Place, give_up
from gpurun.runtime.parallel.reduction import Reduction, reduction_of
from gpurun.runtime.parallel.replicas import Replicas
from gpurun.runtime.parallel.sharding import Sharding
from gpurun.runtime.parallel.shares import Part
from gpurun.runtime.patching import replace
from gpurun.runtime.recorder import RECORDER


class Gradients:
    """Scales losses, and tells the replicas when a backward pass is over.

    `scaled`: the batches are shared out, so that a share's loss is not the batch's.
    """

    def __init__(
        self,
        torch: Any,
        where: Place,
        sharding: Sharding,
        replicas: Replicas,
        agreement: Agreement,
        scaled: bool,
    ) -> None:
        self._torch = torch
        self._agreement = agreement
        self._place = where
        self._sharding = sharding
        self._replicas = replicas
        self._scaled = scaled
        self._told: set[Reduction] = set()
        self._last = Reduction.UNKNOWN
        self._most = 0
        """Samples of the largest batch so far."""
        self._of_largest: set[Reduction] = set()
        """What losses were on such batches."""

    def install(self) -> None:
        """Stand before `torch.autograd.backward`, in which `Tensor.backward` ends."""
        self._inside = getattr(self._torch._C, "_current_graph_task_id", lambda: -1)
        replace(self._torch.autograd, "backward", self._watch)

    def _watch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        compiling = self._torch.compiler.is_dynamo_compiling

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                if compiling() or self._inside() != -1 or not self._replicas.active():
                    return original(tensors, *args, **kwargs)
                weighed = self._weighed(tensors)
                self._replicas.before_backward()
                result = original(weighed, *args, **kwargs)
                self._replicas.after_backward()
                self._sharding.went_back()
                return result
            except BaseException as error:
                if isinstance(error, RuntimeError):
                    self._agreement.blame()
                drop_frame(error)
                raise

        return backward

    def _weighed(self, tensors: Any) -> Any:
        """The loss as it counts; tensors that are no single loss stay as they are."""
        if not self._scaled:
            return tensors
        if self._sharding.part is None:
            give_up(
                "no DataLoader feeds the training: the script makes its batches itself, and no "
                "share of them can be given to each rank",
                "read them through a DataLoader, or run it without --ddp",
            )
        if isinstance(tensors, (list, tuple)):
            return [self._weighed(tensor) for tensor in tensors]
        if tensors.grad_fn is None:
            return tensors
        if tensors.numel() != 1:
            give_up(
                "backward() is called on a tensor of several numbers: how they count in the loss "
                "of the batch cannot be seen",
                "sum them up or take their mean before, or run it without --ddp",
            )
        factor = self._factor(tensors)
        return tensors if factor == 1.0 else tensors * factor

    def _factor(self, loss: Any) -> float:
        part, ranks = self._sharding.part, self._place.size
        assert part is not None
        if part.repeated:
            return 1.0
        kind = self._reduction(loss, part)
        self._tell(kind)
        if kind is Reduction.UNKNOWN:  # torch's wrapper may hide what was seen before it was there
            kind = self._last
        self._last = kind
        if kind is Reduction.SUM:
            return float(ranks)
        if kind is Reduction.PENALISED:
            give_up(
                "the loss is a sum over the samples of a batch beside something that does not "
                "depend on them: shares of a batch cannot be put together",
                "divide the sum by the number of samples, or run it without --ddp",
            )
        if kind is Reduction.MIXED:
            give_up(
                "the loss adds a mean over the samples of a batch to a sum over them: shares of "
                "a batch cannot be put together",
                "use the same reduction for both, or run it without --ddp",
            )
        return part.weight(ranks)

    def _reduction(self, loss: Any, part: Part) -> Reduction:
        """That of a loss; on a batch that is smaller than usual the one that it always was, for a
        constant may there look like a count of elements.
        """
        if part.total < self._most and len(self._of_largest) == 1:
            return next(iter(self._of_largest))
        kind = reduction_of(loss, part.own, part.total, self._replicas.output_nodes())
        if part.total > self._most:
            self._most = part.total
            self._of_largest.clear()
        self._of_largest.add(kind)
        return kind

    def _tell(self, kind: Reduction) -> None:
        if kind in self._told:
            return
        self._told.add(kind)
        detail = kind.value
        if kind is Reduction.UNKNOWN:
            detail = "unknown: taken for a mean over samples"
        RECORDER.event(TraitEvent(trait="loss_reduction", detail=detail))
