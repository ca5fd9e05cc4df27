"""What each term of a loss counts on this rank, so that the average over ranks is the batch's.

A mean over a share counts by what it is taken over there (samples, tokens that are no padding,
weights of classes), of all that the ranks have of it; a sum counts as often as there are ranks, for
gradients are averaged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gpurun.runtime.parallel.feeding import Feeding
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
LOOK_PASSES = 16
"""So many backward passes ranks tell each other at least, of all that begins to be trained."""
LISTEN_PASSES = 16
"""Ranks that tell each other no more do so at each of so many passes if they should."""
ROUNDING = 1e-6
"""Of a count that was kept in single precision."""
Where = tuple[tuple[str, ...], int]
"""A loss, by the path to its terms, and one of them."""
Weight = Any
"""A float or a tensor of one."""


class Weights:
    """Those of one rank. `meet`: makes the ranks meet that have not yet; it takes their device.

    Ranks that had as much for each sample in the first passes of a training tell each other no
    more, but each looks out for a loss of which it has more or less, upon which all begin again.
    They do not stop where batches are `feeding` it of which it is not clear which one a pass is of.
    """

    def __init__(
        self, torch: Any, where: Place, meet: Callable[[Any], None], feeding: Feeding
    ) -> None:
        self._torch = torch
        self._place = where
        self._meet = meet
        self._feeding = feeding
        self._begun = 0
        self._differed: dict[Where, Any] = {}
        """Whether ranks ever differed in what a sum was divided by."""
        self._usual: dict[Where, Any] = {}
        """What there was at first: a count for each sample, or what a sum was divided by."""
        self._passes = 0
        """In which ranks told each other."""
        self._even: Any = True
        """Whether all ranks had as much of everything in each of them."""
        self._quiet = False
        self._still = 0
        """Passes since they tell each other no more."""
        self._odd: Any = False
        """Whether this rank has had more or less of something than usual since."""

    def of(self, device: Any, terms: Terms, part: Part) -> list[Weight]:
        """One for each term of a loss; each rank must ask at each backward pass of a shared batch.

        A float, or a tensor of one, by a count, that a GPU need not be waited for.
        """
        self._feeding.look()
        if self._begun != self._feeding.begun:
            self._begun = self._feeding.begun
            self._begin()
        counted = [term for term in terms.every if term.count is not None]
        unusual = [False] * len(counted)
        if not part.repeated:
            unusual = [self._unusual((terms.path, i), t, part) for i, t in enumerate(counted)]
        if self._quiet:
            self._listen(device, unusual)
        if not self._quiet or not self._feeding.regular:
            return self._told(device, terms, counted, unusual, part)
        return [self._plain(term, part) for term in terms.every]

    def _begin(self) -> None:
        """Something else is trained, or fed."""
        self._usual.clear()
        self._passes, self._even, self._quiet = 0, True, False

    def _listen(self, device: Any, unusual: Sequence[Any]) -> None:
        """Should all tell each other again? Now and then ranks ask each other, all at one pass."""
        for found in (*unusual, self._feeding.ahead):
            self._odd = self._odd | found
        self._still += 1
        if self._still % LISTEN_PASSES:
            return
        odd = self._torch.zeros(1, device=device) + self._odd
        self._torch.distributed.all_reduce(odd)
        self._quiet = not bool(odd)

    def _plain(self, term: Term, part: Part) -> float:
        """By samples alone."""
        if term.kind is Reduction.SUM and not part.repeated:
            return float(self._place.size)
        return part.weight(self._place.size)

    def _told(
        self, device: Any, terms: Terms, counted: list[Term], unusual: list[Any], part: Part
    ) -> list[Weight]:
        """What each term counts by what the ranks have of it, which they tell each other."""
        torch, size = self._torch, self._place.size
        usable = len(counted) <= SLOTS
        counted = counted[:SLOTS]
        own = self._numbers(device, counted, unusual[:SLOTS], part)
        every = own.clone()
        self._meet(device)
        torch.distributed.all_reduce(every)
        together = size * every[0, 1] == every[0, 0] ** 2  # else ranks have not the same terms
        if not part.repeated:
            self._look(every, together, usable)
        weights: list[Weight] = []
        for term in terms.every:
            plain = self._plain(term, part)
            if term.count is None or not usable:
                weights.append(plain)
                continue
            slot = next(i for i, one in enumerate(counted) if one is term)
            total, squared = every[1 + slot, :2]
            counts = together & (total > 0)
            if term.kind is Reduction.SUM:  # of a constant all ranks have the same
                differ = ~self._alike(total, squared)
                counts = counts & self._ever((terms.path, slot), differ)
            ratio = size * own[1 + slot, 0] / torch.where(total > 0, total, torch.ones_like(total))
            weights.append(torch.where(counts, ratio, torch.full_like(ratio, plain)))
        return weights

    def _alike(self, total: Any, squared: Any) -> Any:
        """Whether numbers of all ranks are the same, by their sum and that of their squares."""
        return self._place.size * squared - total * total <= ALIKE * total * total

    def _look(self, every: Any, together: Any, usable: bool) -> None:
        """Did all have as much for each sample, and as usual? Alike on all ranks."""
        if self._passes >= LOOK_PASSES:
            return
        self._passes += 1
        alike = self._alike(every[1:, 2], every[1:, 3]).all() & (every[:, 4] == 0).all()
        self._even = self._even & alike & together & usable & self._feeding.regular
        if self._passes == LOOK_PASSES:
            self._quiet, self._still, self._odd = bool(self._even), 0, False

    def _unusual(self, place: Where, term: Term, part: Part) -> Any:
        """Whether there is more or less of something than at first."""
        mine = term.count if term.kind is Reduction.SUM else term.count / part.own
        usual = self._usual.get(place)
        if usual is None:
            if len(self._usual) > MOST_PLACES:
                self._usual.clear()
            self._usual[place] = mine
            return self._quiet
        return abs(mine - usual) > ROUNDING * abs(usual)

    def _ever(self, place: Where, differ: Any) -> Any:
        """Whether ranks differ now or have done so before; alike on all."""
        before = self._differed.get(place)
        if before is not None and before.device == differ.device:
            differ = differ | before
        if len(self._differed) > MOST_PLACES:
            self._differed.clear()
        self._differed[place] = differ
        return differ

    def _numbers(
        self, device: Any, counted: Sequence[Term], unusual: Sequence[Any], part: Part
    ) -> Any:
        """This rank's, to be added up over all: how many counts there are, its square and, last,
        whether batches are read ahead; then a row for each: the count and its square, the same for
        each sample, whether it is unusual.
        """
        torch = self._torch
        rows = [[float(len(counted)), len(counted) ** 2, 0.0, 0.0, float(self._feeding.ahead)]]
        for term, found in zip(counted, unusual, strict=True):
            known = not torch.is_tensor(term.count)
            count = float(term.count) if known else 0.0
            each = count if term.kind is Reduction.SUM else count / part.own
            rows.append([count, count * count, each, each * each, float(found) if known else 0.0])
        rows += [[0.0] * 5] * (1 + SLOTS - len(rows))
        own = torch.tensor(rows, dtype=torch.float64, device=device)
        for row, term, found in zip(own[1:], counted, unusual, strict=False):
            if torch.is_tensor(term.count):
                row[0] = term.count
                row[2] = row[0] / part.own
                row[1:4:2] = row[0:3:2] ** 2
                row[4] = found
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
