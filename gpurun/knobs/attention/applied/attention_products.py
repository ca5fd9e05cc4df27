"""Read a product in a captured graph as queries times keys, or as weights times values.

Both may be spelled `@`, matmul, bmm, baddbmm or einsum. An einsum may hold its dimensions in any
order, so each factor says in which order it is to be read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from gpurun.knobs.attention.applied.score_steps import args_of

Shape = Callable[[Node], tuple[Any, ...] | None]

PRODUCTS = ("matmul", "bmm", "__matmul__")


@dataclass(frozen=True)
class Factor:
    """A tensor, and the order in which its dimensions are (batch ..., length, width); None: as is.

    `width` is the size of a head of queries, keys or values.
    """

    node: Node
    order: tuple[int, ...] | None = None

    def shape(self, shape_of: Shape) -> tuple[Any, ...]:
        """The sizes in that order, () where they are not known."""
        sizes = shape_of(self.node) or ()
        if self.order is None or len(self.order) != len(sizes):
            return sizes
        return tuple(sizes[i] for i in self.order)

    @property
    def dtype(self) -> torch.dtype | None:
        """The tensor's data type, None where it is not known."""
        return getattr(self.node.meta.get("example_value"), "dtype", None)


@dataclass(frozen=True)
class Product:
    """Scores: `factor` · query · keyᵀ + `added_factor` · `added`."""

    query: Factor
    key: Factor
    factor: float = 1.0
    added: Node | None = None
    added_factor: float = 1.0


@dataclass(frozen=True)
class Total:
    """weights · value; `order` permutes (batch ..., length, width) to the result's dimensions."""

    value: Factor
    order: tuple[int, ...] | None = None


def product_of(node: Node, name: str, shape_of: Shape) -> Product | None:
    """The factors of a node, if it is a product whose result may be scores."""
    shape = shape_of(node)
    if shape is None or len(shape) < 3:
        return None
    if name in PRODUCTS and len(node.args) == 2 and not node.kwargs:
        query, key = args_of(node)
        return Product(Factor(query), _transposed(Factor(key), len(shape)))
    if name == "baddbmm":
        return _baddbmm(node, len(shape))
    if name == "einsum":
        return _einsum_scores(node)
    return None


def weighted_sum_of(node: Node, name: str, weights: Node, shape_of: Shape) -> Total | None:
    """The values that a node sums with these weights, if it does."""
    shape = shape_of(node)
    if shape is None or len(shape) < 3:
        return None
    if name in PRODUCTS and len(node.args) == 2 and not node.kwargs:
        first, second = args_of(node)
        return Total(Factor(second)) if first is weights and second is not weights else None
    if name == "einsum":
        return _einsum_total(node, weights)
    return None


def _transposed(factor: Factor, dimensions: int) -> Factor:
    return Factor(factor.node, (*range(dimensions - 2), dimensions - 1, dimensions - 2))


def _baddbmm(node: Node, dimensions: int) -> Product | None:
    names = ("input", "batch1", "batch2")
    given: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    beta, alpha = given.get("beta", 1), given.get("alpha", 1)
    if not all(isinstance(x, int | float) for x in (beta, alpha)) or alpha == 0:
        return None
    if not all(name in given for name in names) or "out" in given:
        return None
    query, key = Factor(given["batch1"]), Factor(given["batch2"])
    added = given["input"] if beta != 0 else None
    return Product(query, _transposed(key, dimensions), float(alpha), added, float(beta))


def _einsum(node: Node) -> tuple[list[Node], list[str], str] | None:
    """The two operands of an einsum, their letters and the result's."""
    equation, *operands = args_of(node) or (None,)
    if not isinstance(equation, str) or node.kwargs:
        return None
    if len(operands) == 1 and isinstance(operands[0], list | tuple):
        operands = list(operands[0])
    left, arrow, result = equation.replace(" ", "").partition("->")
    letters = left.split(",")
    words = (*letters, result)
    if not arrow or len(operands) != 2 or len(letters) != 2:
        return None
    if any(not word.isalpha() or len(set(word)) != len(word) for word in words):
        return None
    return operands, letters, result


def _einsum_scores(node: Node) -> Product | None:
    read = _einsum(node)
    if read is None or len(read[2]) < 3:
        return None
    operands, letters, result = read
    batch, length, other = result[:-2], result[-2], result[-1]
    if length not in letters[0]:
        operands, letters = operands[::-1], letters[::-1]
    width = set(letters[0]) - set(result)
    if len(width) != 1:
        return None
    (inner,) = width
    query, key = batch + length + inner, batch + other + inner
    if sorted(query) != sorted(letters[0]) or sorted(key) != sorted(letters[1]):
        return None
    return Product(
        Factor(operands[0], _order(letters[0], query)), Factor(operands[1], _order(letters[1], key))
    )


def _einsum_total(node: Node, weights: Node) -> Total | None:
    read = _einsum(node)
    if read is None:
        return None
    operands, letters, result = read
    if operands[1] is weights:
        operands, letters = operands[::-1], letters[::-1]
    if operands[0] is not weights or operands[1] is weights or len(letters[0]) < 3:
        return None
    batch, length, other = letters[0][:-2], letters[0][-2], letters[0][-1]
    width = set(letters[1]) - set(letters[0])
    if len(width) != 1:
        return None
    (inner,) = width
    value, total = batch + other + inner, batch + length + inner
    if sorted(value) != sorted(letters[1]) or sorted(total) != sorted(result):
        return None
    return Total(Factor(operands[1], _order(letters[1], value)), _order(total, result))


def _order(have: str, want: str) -> tuple[int, ...] | None:
    return None if have == want else tuple(have.index(letter) for letter in want)
