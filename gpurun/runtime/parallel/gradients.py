"""The gradients of a rank's share, made those of the whole batch.

The terms of a loss are weighed as they are differentiated, each by what it counts (`weights`), for
DistributedDataParallel then averages over ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from gpurun.records.events import TraitEvent
from gpurun.records.frames import drop_frame
from gpurun.runtime.parallel.agreement import Agreement
from gpurun.runtime.parallel.place import Place, give_up, warn
from gpurun.runtime.parallel.reduction import Reduction, Terms, terms_of
from gpurun.runtime.parallel.replicas import Replicas
from gpurun.runtime.parallel.sharding import Sharding
from gpurun.runtime.parallel.shares import Part
from gpurun.runtime.parallel.weights import Weights, times, weighing
from gpurun.runtime.patching import replace
from gpurun.runtime.recorder import RECORDER

MOST_LOSSES = 64
"""Of so many different ones it is remembered what they were."""


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
        self._weights = Weights(torch, where, replicas.meet, sharding.feeding)
        self._told: set[Reduction] = set()
        self._last = Reduction.UNKNOWN
        self._begun = 0
        self._of_largest: dict[tuple[str, ...], tuple[int, Reduction]] = {}
        """Of each loss, by its path, the samples of its largest batch, and its kind there."""

    def install(self) -> None:
        """Stand before `torch.autograd.backward`, in which `Tensor.backward` ends."""
        replace(self._torch.autograd, "backward", self._watch)

    def _watch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        compiling = self._torch.compiler.is_dynamo_compiling

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                if compiling() or self._replicas.in_backward() or not self._replicas.active():
                    return original(tensors, *args, **kwargs)
                with self._agreement.standing.exchanging(), ExitStack() as hooks:
                    weighed = self._weighed(tensors, hooks)
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

    def _weighed(self, tensors: Any, hooks: ExitStack) -> Any:
        """The loss as it counts; tensors that are no single loss stay as they are.

        Terms that count differently do so by hooks of their nodes, to be removed afterwards.
        """
        if not self._scaled:
            return tensors
        part = self._sharding.part
        if part is None:
            give_up(
                "no DataLoader feeds the training: the script makes its batches itself, and no "
                "share of them can be given to each rank",
                "read them through a DataLoader, or run it without --ddp",
            )
        if isinstance(tensors, (list, tuple)):
            return [self._weighed(tensor, hooks) for tensor in tensors]
        if tensors.grad_fn is None:
            return tensors
        if tensors.numel() != 1:
            give_up(
                "backward() is called on a tensor of several numbers: how they count in the loss "
                "of the batch cannot be seen",
                "sum them up or take their mean before, or run it without --ddp",
            )
        terms = self._terms(tensors, part)
        weights = self._weights.of(tensors.device, terms, part)
        if not weights:
            return tensors * part.weight(self._place.size)
        alike = all(isinstance(weight, float) and weight == weights[0] for weight in weights)
        apart = terms.beside and terms.kind is not Reduction.MEAN
        if not terms.whole or (alike and not apart):
            return times(self._torch, tensors, weights[0])
        for term, weight in zip(terms.every, weights, strict=True):
            hooks.enter_context(weighing(self._torch, term.node, weight))
        return tensors

    def _terms(self, loss: Any, part: Part) -> Terms:
        """Those of a loss, each of a kind by which it can be weighed."""
        terms = terms_of(loss, part.own, part.total, self._replicas.marked)
        if part.repeated:  # by all that can be seen: batches that are read together need not be
            return terms
        kind = self._usual(terms, part)
        if terms.every or not terms.beside:  # a penalty alone is the same on all ranks
            self._tell(kind, terms)
        if kind is Reduction.UNKNOWN:  # torch's wrapper may hide what was seen before it was there
            return terms.taken_for(self._last)
        if kind is not Reduction.MIXED:
            self._last = kind
            return terms.taken_for(kind)
        if not terms.clear:
            give_up(
                "the loss adds a mean over the samples of a batch to a sum over them, and what of "
                "it comes from the model cannot be seen: shares of a batch cannot be put together",
                "use the same reduction for both, or run it without --ddp",
            )
        return terms

    def _usual(self, terms: Terms, part: Part) -> Reduction:
        """The kind of a loss; on a batch that is smaller than usual the one that it always was, for
        a constant may there look like a count of elements.
        """
        if self._begun != self._sharding.feeding.begun:  # what is trained now may be another loss
            self._begun = self._sharding.feeding.begun
            self._of_largest.clear()
        most, kind = self._of_largest.get(terms.path, (0, terms.kind))
        if part.total >= most:
            if len(self._of_largest) > MOST_LOSSES:
                self._of_largest.clear()
            self._of_largest[terms.path] = part.total, terms.kind
            return terms.kind
        return kind

    def _tell(self, kind: Reduction, terms: Terms) -> None:
        if kind in self._told:
            return
        self._told.add(kind)
        detail = kind.value
        if kind is Reduction.UNKNOWN:
            detail = "unknown: taken for a mean over samples"
            if terms.every and self._last is Reduction.UNKNOWN:
                name = terms.every[0].node.name()
                warn(
                    f"how the loss depends on the samples of a batch cannot be seen ({name}): it "
                    "is taken for a mean over them, and of each rank its share's"
                )
        RECORDER.event(TraitEvent(trait="loss_reduction", detail=detail))
