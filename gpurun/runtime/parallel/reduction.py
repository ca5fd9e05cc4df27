"""Is a loss a mean over its samples, or a sum? Read from its graph, between it and the model.

Gradients of ranks are averaged. That is right for a mean; a loss that sums over samples, or is
divided by a constant, must count as many times as there are ranks.
"""

from __future__ import annotations

import enum
from collections.abc import Collection
from typing import Any

MOST_NODES = 256
"""So far is the graph followed."""
MEAN, SUM = 1, 2
"""Torch's numbers of a loss function's `reduction`."""
Divisors = tuple[tuple[float, bool], ...]
"""Numbers by which a loss is divided, and whether each was computed by torch."""
TRANSPARENT = (
    "Add", "Sub", "Neg", "View", "Reshape", "Squeeze", "Unsqueeze", "ToCopy", "Clone", "Alias",
    "Expand", "Select", "Stack", "Cat", "Unbind", "Copy", "Permute", "Transpose", "TBackward",
    "_DDPSink",
)  # fmt: skip
"""Nodes that neither reduce nor scale."""


class Reduction(enum.Enum):
    """How a loss depends on the number of samples; `MIXED`: in two ways at once; `PENALISED`: a sum
    over them, beside what does not depend on them.
    """

    MEAN = "mean"
    SUM = "sum"
    MIXED = "mixed"
    PENALISED = "sum, and something beside it"
    UNKNOWN = "unknown"


def reduction_of(
    loss: Any, own: int, total: int, outputs: Collection[Any] = frozenset()
) -> Reduction:
    """That of a scalar loss of `own` samples, of a batch that had `total` before it was shared.

    `outputs`: the graph nodes of what the model returned. What does not come from these (a penalty
    on weights) says nothing; where they are not known everything does.
    """
    known = () if loss.grad_fn in outputs else outputs
    found: set[Reduction] = set()
    beside = False
    ahead: list[tuple[Any, Divisors]] = [(loss.grad_fn, ())]
    seen: set[tuple[Any, Divisors]] = set()
    while ahead and len(seen) < MOST_NODES:
        entry = ahead.pop()
        node, divisors = entry
        if node is None or entry in seen:
            continue
        seen.add(entry)
        name = node.name()
        kind = _reduced(node, name, divisors, own, total)
        if kind is not None:
            if not known or _reaches(node, known):
                found.add(kind)
            else:
                beside = True
        elif name.startswith(("DivBackward", "MulBackward")):
            ahead += [(following, divisors + _divisor(node, name)) for following in _behind(node)]
        elif name.startswith(TRANSPARENT):
            ahead += [(following, divisors) for following in _behind(node)]
        elif not name.endswith("AccumulateGrad") and (not known or _reaches(node, known)):
            found.add(Reduction.UNKNOWN)
    if {Reduction.MEAN, Reduction.SUM} <= found:
        return Reduction.MIXED
    if beside and Reduction.SUM in found:
        return Reduction.PENALISED
    for kind in (Reduction.SUM, Reduction.MEAN):
        if kind in found:
            return kind
    return Reduction.UNKNOWN


def _reduced(node: Any, name: str, divisors: Divisors, own: int, total: int) -> Reduction | None:
    """What a node that reduces over samples says; None for any other."""
    if name.startswith("MeanBackward"):
        return Reduction.MEAN
    reduction = getattr(node, "_saved_reduction", None)
    if reduction == MEAN:
        return Reduction.MEAN
    if reduction == SUM or name.startswith("SumBackward"):
        elements = _elements(node)
        by_count = any(_counts_samples(*found, own, total, elements) for found in divisors)
        return Reduction.MEAN if by_count else Reduction.SUM
    return None


def _counts_samples(divisor: float, computed: bool, own: int, total: int, elements: int) -> bool:
    """Whether a divisor is the number of samples (or of their unmasked elements) at hand.

    `/ args.batch_size` is none: it knows of no ranks. Nor is a small number of the script's: steps
    of accumulation. One that was `computed`, and counts something, counts what is at hand.
    """
    if divisor == own:
        return True
    if divisor == total or divisor > (elements or divisor):
        return False
    return elements / 2 < divisor if not computed else divisor > 1 and divisor.is_integer()


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
    value: Any = getattr(node, "_saved_other", None) if name.startswith("Div") else None
    if getattr(value, "numel", lambda: 0)() == 1 and not value.requires_grad:
        return ((float(value), not _is_number(value)),)
    return ()


def _is_number(value: Any) -> bool:
    """Whether a tensor stands for a number of python's: such ones never raise another's type."""
    import torch

    kind = torch.float16 if value.dtype is torch.bfloat16 else torch.bfloat16
    probe = torch.zeros((), dtype=kind if value.is_floating_point() else torch.int8)
    return value.dim() == 0 and torch.result_type(probe, value) == probe.dtype


def _behind(node: Any) -> list[Any]:
    return [following for following, _ in node.next_functions if following is not None]


def _reaches(node: Any, outputs: Collection[Any]) -> bool:
    """Whether a node depends on what the model returned; True where that is too far to see."""
    ahead, seen = [node], {node}
    while ahead:
        node = ahead.pop()
        if node in outputs or len(seen) > MOST_NODES:
            return True
        new = [following for following in _behind(node) if following not in seen]
        seen.update(new)
        ahead += new
    return False
