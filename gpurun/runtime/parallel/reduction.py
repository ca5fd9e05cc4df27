"""Is a loss a mean over its samples, or a sum? Read from its graph, between it and the model.

Gradients of ranks are averaged. That is right for a mean; a loss that sums over samples, or is
divided by a constant, must count as many times as there are ranks.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from gpurun.runtime.parallel.provenance import (
    MOST_NODES,
    behind,
    comes_from_output,
    is_output,
    takes_data,
)

MEAN, SUM = 1, 2
"""Torch's numbers of a loss function's `reduction`."""
ROUNDING = 1e-5
"""Of a factor that is kept in single precision."""
DECIMALS = 3
"""Of a factor that a script has written down."""
Divisors = tuple[tuple[float, bool | None], ...]
"""Numbers by which a loss is divided, and whether each was computed by torch; None for the inverse
of a factor, which is below 1 for a factor above it."""
TRANSPARENT = (
    "Add", "Sub", "Neg", "View", "Reshape", "Squeeze", "Unsqueeze", "ToCopy", "Clone", "Alias",
    "Expand", "Select", "Stack", "Cat", "Unbind", "Copy", "Permute", "Transpose", "TBackward",
    "_DDPSink",
)  # fmt: skip
"""Nodes that neither reduce nor scale."""


class Reduction(enum.Enum):
    """How a loss depends on the number of samples; `MIXED`: in two ways at once."""

    MEAN = "mean"
    SUM = "sum"
    MIXED = "mixed"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Term:
    """What a loss is made of: a node of its graph that reduces over samples.

    `count`: what the sum is divided by, where a mean is taken over something else than samples
    (tokens that are no padding, weights of classes): a number or a tensor of one, None for samples.
    A sum that has one is a mean if ranks differ in it. `sure`: it was seen to come from samples.
    `single`: it is over one sample.
    """

    node: Any
    kind: Reduction
    count: Any = None
    sure: bool = False
    single: bool = False


@dataclass(frozen=True)
class Terms:
    """Those that add up to a loss. `beside`: so does what does not come from the model, a penalty
    on weights; `whole`: none is missing, as there were not too many nodes; `path`: the names of the
    nodes from the loss to them.
    """

    every: tuple[Term, ...]
    beside: bool
    whole: bool
    path: tuple[str, ...] = ()

    @property
    def kind(self) -> Reduction:
        """That of the loss."""
        kinds = {term.kind for term in self.every} - {Reduction.UNKNOWN}
        if len(kinds) > 1:
            return Reduction.MIXED
        return next(iter(kinds), Reduction.UNKNOWN)

    @property
    def clear(self) -> bool:
        """Whether each term can be weighed by itself, also where they are of different kinds."""
        return self.whole and all(t.sure and t.kind is not Reduction.MIXED for t in self.every)

    def taken_for(self, kind: Reduction) -> Terms:
        """All of them of one kind."""
        return replace(self, every=tuple(replace(term, kind=kind) for term in self.every))


def terms_of(loss: Any, own: int, total: int, marked: bool) -> Terms:
    """The terms of a scalar loss of `own` samples, of a batch that had `total` before it was
    shared.

    What comes neither from what a model returned, which is `marked` if there is any, nor else from
    data (a penalty on weights) is no term. Without either everything may be one.
    """
    reducing: list[tuple[Any, str, Divisors, bool | None]] = []
    beside, within, path = False, not marked, []
    ahead: list[tuple[Any, Divisors, bool]] = [(loss.grad_fn, (), False)]
    seen: set[tuple[Any, Divisors, bool]] = set()
    while ahead and len(seen) < MOST_NODES:
        entry = ahead.pop()
        node, divisors, inside = entry
        if node is None or entry in seen:
            continue
        seen.add(entry)
        name = node.name()
        path.append(f"{name} {getattr(node, '_saved_reduction', '')}")
        inside = inside or is_output(node)  # the model computes its loss itself
        if name.startswith(("DivBackward", "MulBackward")):
            further = divisors + _divisor(node, name)
            ahead += [(following, further, inside) for following in behind(node)]
            continue
        if name.startswith(TRANSPARENT) or _adds_terms(node, name, own):
            ahead += [(following, divisors, inside) for following in behind(node)]
            continue
        if name.endswith("AccumulateGrad"):
            beside = True
            continue
        reducing.append((node, name, divisors, marked and not inside and comes_from_output(node)))
        within = within or inside
    alone = within and len({node for node, *_ in reducing}) == 1  # nothing to tell it from
    found: dict[Any, Term] = {}
    doubtful: dict[Any, Term] = {}
    for node, name, divisors, reached in reducing:
        comes = True if reached else None if alone else takes_data(node)
        terms = doubtful if comes is False else found
        terms[node] = _term(node, name, divisors, own, total, terms.get(node), sure=comes is True)
    if not found and within:
        found, doubtful = doubtful, {}
    every = tuple(_like_another(term, found.values()) for term in found.values())
    if all(term.single for term in every) and (ahead or len(every) == own):  # added up in a loop
        every = tuple(replace(term, kind=Reduction.SUM, count=None) for term in every)
    return Terms(every, beside or bool(doubtful), whole=not ahead, path=tuple(path))


def _term(
    node: Any,
    name: str,
    divisors: Divisors,
    own: int,
    total: int,
    before: Term | None,
    *,
    sure: bool,
) -> Term:
    """What a node is to a loss; `before`: it is that already, by another way."""
    kind, count = _reduced(node, name, divisors, own, total)
    if before is not None and before.kind is not kind:
        kind = Reduction.MIXED
    single = own > 1 and kind is Reduction.MEAN and _is_of_one_sample(node)
    if single and any(divisor == own for divisor, _ in divisors):
        count, single = None, False
    return Term(node, kind, count, sure, single)


def _like_another(term: Term, others: Iterable[Term]) -> Term:
    """A sum by what another term takes its mean over is such a mean: smoothed labels."""
    if term.kind is Reduction.SUM and term.count:
        means = (x.count for x in others if hasattr(x.count, "item"))
        if any(abs(float(mean) - term.count) < ROUNDING * term.count for mean in means):
            return replace(term, kind=Reduction.MEAN)
    return term


def _reduced(
    node: Any, name: str, divisors: Divisors, own: int, total: int
) -> tuple[Reduction, Any]:
    """How a node reduces over samples, and its count."""
    reduction = getattr(node, "_saved_reduction", None)
    if name.startswith("MeanBackward") and _first_over_samples(node, "Sum", own):
        return Reduction.SUM, None
    if reduction == MEAN or name.startswith("MeanBackward"):
        by_samples = any(abs(d * own - 1) < ROUNDING for d, _ in divisors if d < 1 < own)
        if by_samples and all(d != own for d, _ in divisors):
            return Reduction.SUM, None
        return Reduction.MEAN, getattr(node, "_saved_total_weight", _elements(node) or None)
    if reduction != SUM and not name.startswith("SumBackward"):
        return Reduction.UNKNOWN, None
    elements = _elements(node)
    for divisor, computed in divisors:
        if _counts_samples(divisor, computed, own, total, elements):
            return Reduction.MEAN, divisor
    if _first_over_samples(node, "Mean", own):
        return Reduction.MEAN, None
    # weights of samples, few or none that are left, or a constant: what ranks have of it tells
    counts = [d for d, computed in divisors if computed is not None and d >= 0]
    return Reduction.SUM, next(iter(counts or [d for d, _ in divisors if d >= 1]), None)


def _counts_samples(
    divisor: float, computed: bool | None, own: int, total: int, elements: int
) -> bool:
    """Whether a divisor is the number of samples (or of their unmasked elements) at hand.

    `/ args.batch_size` is none: it knows of no ranks. Nor is a small number of the script's: steps
    of accumulation. One that was `computed`, and counts something, counts what is at hand. A factor
    of 0.5 or 0.1 is rather a term's weight.
    """
    if divisor == own and (computed is not None or round(1 / divisor, DECIMALS) != 1 / divisor):
        return True
    if computed is None or divisor == total or divisor > (elements or divisor):
        return False
    return elements / 2 < divisor if not computed else divisor > 1 and divisor.is_integer()


def _first_over_samples(node: Any, name: str, own: int) -> bool:
    """Whether what a node reduces was a mean (or a sum) over the first dimension, that of samples,
    before: what is left are none.
    """
    return _elements(node) != own and any(
        x.name().startswith(f"{name}Backward1") and tuple(getattr(x, "_saved_dim", ())) == (0,)
        for x in behind(node)
    )


def _adds_terms(node: Any, name: str, own: int) -> bool:
    """Whether a sum or mean is over terms of a loss that were put into one tensor, not samples."""
    if not name.startswith(("SumBackward0", "MeanBackward0")) or _elements(node) == own:
        return False
    ahead, seen = behind(node), 0
    while ahead:
        node = ahead.pop()
        seen += 1
        name = node.name()
        if name.startswith((*TRANSPARENT, "DivBackward", "MulBackward")) and seen < MOST_NODES:
            ahead += behind(node)
        elif not (
            name.startswith(("SumBackward0", "MeanBackward0"))
            or getattr(node, "_saved_reduction", None) in (MEAN, SUM)
        ):
            return False
    return seen > 0


def _is_of_one_sample(node: Any) -> bool:
    """Whether a mean is over a single sample, as far as its shape tells."""
    scores = getattr(node, "_saved_self", None) if node.name().startswith("NllLoss") else None
    sizes = getattr(scores, "shape", None)
    if sizes is not None:  # of classes, and of samples where there are several
        return len(sizes) == 1 or int(sizes[0]) == 1
    sizes = _sizes(node)
    return all(size == 1 for size in sizes) or (len(sizes) > 1 and int(sizes[0]) == 1)


def _elements(node: Any) -> int:
    """How many elements a sum goes over; 0 where its node does not tell."""
    return math.prod(int(size) for size in _sizes(node))


def _sizes(node: Any) -> Any:
    """The shape of what is summed; (0,) where its node does not tell."""
    sizes: Any = getattr(node, "_saved_self_sym_sizes", None)
    if sizes is None:
        target = getattr(node, "_saved_target", getattr(node, "_saved_self", None))
        sizes = getattr(target, "shape", (0,))
    return sizes


def _divisor(node: Any, name: str) -> Divisors:
    """By what a quotient of one number divides, and whether that is a tensor of the script's."""
    value: Any = getattr(node, "_saved_other", None)
    if isinstance(value, (int, float)):
        number, computed = float(value), False
    elif not name.startswith("Div") and getattr(value, "is_cuda", False):
        return ()  # a scale of the script's: to read it would wait for the device
    elif getattr(value, "numel", lambda: 0)() == 1 and not value.requires_grad:
        number, computed = float(value), not _is_number(value)
    else:
        return ()
    if name.startswith("Div"):
        return ((number, computed),)
    if number > 1:
        return ((1 / number, None),)
    # a factor of 1 / n divides by n
    whole = round(1 / number) if 0 < number < 1 else 0
    return ((float(whole), None),) if whole and abs(whole * number - 1) < ROUNDING else ()


def _is_number(value: Any) -> bool:
    """Whether a tensor stands for a number of python's: such ones never raise another's type."""
    import torch

    kind = torch.float16 if value.dtype is torch.bfloat16 else torch.bfloat16
    probe = torch.zeros((), dtype=kind if value.is_floating_point() else torch.int8)
    return value.dim() == 0 and torch.result_type(probe, value) == probe.dtype
