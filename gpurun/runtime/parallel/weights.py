"""What each term of a loss counts on this rank, so that the average over ranks is the batch's.

A mean over a share counts by what it is taken over there (samples, tokens that are no padding,
weights of classes), of all that the ranks have of it; a sum counts as often as there are ranks, for
gradients are averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpurun.runtime.parallel.place import Place
from gpurun.runtime.parallel.reduction import Reduction, Term, Terms
from gpurun.runtime.parallel.shares import Part

SLOTS = 8
"""Counts that ranks tell each other at each backward pass. Of a loss of more terms each counts by
samples."""
ALIKE = 1e-12
"""Ranks differ in a count if its variance is larger, relative to its mean's square: rounding."""
MOST_PLACES = 64
"""Of so many sums it is remembered whether ranks differed."""
Weight = Any
"""A float or a tensor of one."""


class Weights:
    """Those of one rank. `meet`: makes the ranks meet that have not yet; it takes their device."""

    def __init__(self, torch: Any, where: Place, meet: Callable[[Any], None]) -> None:
        self._torch = torch
        self._place = where
        self._meet = meet
        self._differed: dict[tuple[Any, ...], Any] = {}
        """Whether ranks ever differed in what a sum was divided by: in which loss, and place."""

    def of(self, device: Any, terms: Terms, part: Part) -> list[Weight]:
        """One for each term of a loss; each rank must ask at each backward pass of a shared batch.

        A float, or a tensor of one, by a count, that a GPU need not be waited for.
        """
        torch, size = self._torch, self._place.size
        counted = [term for term in terms.every if term.count is not None]
        usable = len(counted) <= SLOTS
        counted = counted[:SLOTS]
        own = self._numbers(device, counted)
        every = own.clone()
        self._meet(device)
        torch.distributed.all_reduce(every)
        filled, squares = every[0]
        together = size * squares == filled * filled  # else ranks have not the same terms
        weights: list[Weight] = []
        for term in terms.every:
            summed = term.kind is Reduction.SUM
            plain = float(size) if summed and not part.repeated else part.weight(size)
            if term.count is None or not usable:
                weights.append(plain)
                continue
            slot = 1 + next(i for i, one in enumerate(counted) if one is term)
            total, squared = every[slot]
            counts = together & (total > 0)
            if summed:  # of a constant all ranks have the same
                differ = size * squared - total * total > ALIKE * total * total
                counts = counts & self._ever((terms.path, slot), differ)
            ratio = size * own[slot, 0] / torch.where(total > 0, total, torch.ones_like(total))
            weights.append(torch.where(counts, ratio, torch.full_like(ratio, plain)))
        return weights

    def _ever(self, place: tuple[Any, ...], differ: Any) -> Any:
        """Whether ranks differ now or have done so before; alike on all."""
        before = self._differed.get(place)
        if before is not None and before.device == differ.device:
            differ = differ | before
        if len(self._differed) > MOST_PLACES:
            self._differed.clear()
        self._differed[place] = differ
        return differ

    def _numbers(self, device: Any, counted: Sequence[Term]) -> Any:
        """This rank's, to be added up over all, two a row: how many counts there are and its
        square; then a row for each: the count and its square.
        """
        torch = self._torch
        rows = [[float(len(counted)), float(len(counted) ** 2)]]
        for term in counted:
            count = 0.0 if torch.is_tensor(term.count) else float(term.count)
            rows.append([count, count * count])
        rows += [[0.0, 0.0]] * (1 + SLOTS - len(rows))
        own = torch.tensor(rows, dtype=torch.float64, device=device)
        for slot, term in enumerate(counted, start=1):
            if torch.is_tensor(term.count):
                own[slot, 0] = term.count
                own[slot, 1] = own[slot, 0] ** 2
        return own


def weighing(torch: Any, node: Any, weight: Weight) -> Any:
    """A hook by which what flows back into a node is weighed, to be removed (`with`)."""

    def weigh(gradients: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(None if g is None else times(torch, g, weight) for g in gradients)

    return node.register_prehook(weigh)


def times(torch: Any, gradient: Any, weight: Weight) -> Any:
    """A gradient or a loss, weighed."""
    if isinstance(weight, float):
        return gradient * weight
    # a rank that has nothing of what is counted has divided by 0
    nothing = torch.zeros_like(gradient)
    return torch.where(weight == 0, nothing, gradient * weight.to(gradient.dtype))
