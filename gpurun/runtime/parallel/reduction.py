"""Is a loss a mean over its samples, or a sum? Read from its graph, between it and the model.

Gradients of ranks are averaged. That is right for a mean; a loss that sums over samples, or is
divided by a constant, must count as many times as there are ranks.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

MOST_NODES = 256
"""So far is the graph followed."""
MEAN, SUM = 1, 2
"""Torch's numbers of a loss function's `reduction`."""
ROUNDING = 1e-5
"""Of a factor that is kept in single precision."""
Divisors = tuple[tuple[float, bool | None], ...]
"""Numbers by which a loss is divided, and whether each was computed by torch; None for the inverse
of a factor."""
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
    A sum that has one is a mean if ranks differ in it. `sure`: it was seen to come from the model.
    """

    node: Any
    kind: Reduction
    count: Any = None
    sure: bool = False


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


def terms_of(
    loss: Any, own: int, total: int, is_output: Callable[[Any], bool] | None = None
) -> Terms:
    """The terms of a scalar loss of `own` samples, of a batch that had `total` before it was
    shared.

    `is_output`: whether a node of the graph made what the model returned. What does not come from
    there (a penalty on weights) is no term; where it is not known everything may be one.
    """
    known = None if is_output is None or is_output(loss.grad_fn) else is_output
    found: dict[Any, Term] = {}
    beside, path = False, []
    ahead: list[tuple[Any, Divisors]] = [(loss.grad_fn, ())]
    seen: set[tuple[Any, Divisors]] = set()
    while ahead and len(seen) < MOST_NODES:
        entry = ahead.pop()
        node, divisors = entry
        if node is None or entry in seen:
            continue
        seen.add(entry)
        name = node.name()
        path.append(f"{name} {getattr(node, '_saved_reduction', '')}")
        if name.startswith(("DivBackward", "MulBackward")):
            ahead += [(following, divisors + _divisor(node, name)) for following in _behind(node)]
            continue
        if name.startswith(TRANSPARENT) or _adds_terms(node, name, own):
            ahead += [(following, divisors) for following in _behind(node)]
            continue
        reached = _reaches(node, known) if known else None
        if name.endswith("AccumulateGrad") or reached is False:
            beside = True
            continue
        kind, count = _reduced(node, name, divisors, own, total)
        if node in found and found[node].kind is not kind:
            kind = Reduction.MIXED
        found[node] = Term(node, kind, count, sure=reached is True)
    terms = tuple(_like_another(term, found.values()) for term in found.values())
    return Terms(terms, beside, whole=not ahead, path=tuple(path))


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
    return Reduction.SUM, next(
        (d for d, computed in divisors if computed is not None and d >= 0), None
    )


def _counts_samples(
    divisor: float, computed: bool | None, own: int, total: int, elements: int
) -> bool:
    """Whether a divisor is the number of samples (or of their unmasked elements) at hand.

    `/ args.batch_size` is none: it knows of no ranks. Nor is a small number of the script's: steps
    of accumulation. One that was `computed`, and counts something, counts what is at hand.
    """
    if divisor == own:
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
        for x in _behind(node)
    )


def _adds_terms(node: Any, name: str, own: int) -> bool:
    """Whether a sum or mean is over terms of a loss that were put into one tensor, not samples."""
    if not name.startswith(("SumBackward0", "MeanBackward0")) or _elements(node) == own:
        return False
    ahead, seen = _behind(node), 0
    while ahead:
        node = ahead.pop()
        seen += 1
        name = node.name()
        if name.startswith((*TRANSPARENT, "DivBackward", "MulBackward")) and seen < MOST_NODES:
            ahead += _behind(node)
        elif not (
            name.startswith(("SumBackward0", "MeanBackward0"))
            or getattr(node, "_saved_reduction", None) in (MEAN, SUM)
        ):
            return False
    return seen > 0


def _elements(node: Any) -> int:
    """How many elements a sum goes over; 0 where its node does not tell."""
    sizes: Any = getattr(node, "_saved_self_sym_sizes", None)
    if sizes is None:
        target = getattr(node, "_saved_target", getattr(node, "_saved_self", None))
        sizes = getattr(target, "shape", (0,))
    count = 1
    for size in sizes:
        count *= int(size)
    return count


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
    # a factor of 1 / n divides by n
    whole = round(1 / number) if 0 < number < 1 else 0
    return ((float(whole), None),) if whole and abs(whole * number - 1) < ROUNDING else ()


def _is_number(value: Any) -> bool:
    """Whether a tensor stands for a number of python's: such ones never raise another's type."""
    import torch

    kind = torch.float16 if value.dtype is torch.bfloat16 else torch.bfloat16
    probe = torch.zeros((), dtype=kind if value.is_floating_point() else torch.int8)
    return value.dim() == 0 and torch.result_type(probe, value) == probe.dtype


def _behind(node: Any) -> list[Any]:
    return [following for following, _ in node.next_functions if following is not None]


def _reaches(node: Any, is_output: Callable[[Any], bool]) -> bool | None:
    """Whether a node depends on what the model returned; None where that is too far to see."""
    ahead, seen = [node], {node}
    while ahead:
        node = ahead.pop()
        if is_output(node):
            return True
        if len(seen) > MOST_NODES:
            return None
        new = [following for following in _behind(node) if following not in seen]
        seen.update(new)
        ahead += new
    return False
