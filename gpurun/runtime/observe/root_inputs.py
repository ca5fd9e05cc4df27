"""The inputs of a root module: its first tensor, and the samples and tokens in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

DEPTH = 3
"""The usual depth of nested batches: a list of dicts of tensors."""


def first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | None:
    """The first tensor with a dimension in the arguments of a call, None if there is none."""
    for value in args:
        if isinstance(value, torch.Tensor) and value.shape:
            return value
    return next(tensors_of((*args, *kwargs.values()), DEPTH), None)


def sizes(first: torch.Tensor | None, module: nn.Module) -> tuple[int, int]:
    """Samples and tokens that a root module reads.

    Samples: the leading dimension of the first tensor; 1 for a vector that is as wide as the
    module's first linear layer (one observation, without a batch). Tokens: the elements of an
    integer matrix.
    """
    if first is None:
        return 0, 0
    shape, kind = first.shape, first.dtype
    if type(shape[0]) is not int:
        return 0, 0  # traced, by jit or dynamo: reading it would be recorded, or warned of
    if len(shape) == 1 and kind.is_floating_point and shape[0] == _first_width(module):
        return 1, 0
    if len(shape) != 2 or kind.is_floating_point or kind.is_complex or kind is torch.bool:
        return int(shape[0]), 0
    return int(shape[0]), int(shape[0] * shape[1])


def _first_width(module: nn.Module) -> int | None:
    return next((m.in_features for m in module.modules() if isinstance(m, nn.Linear)), None)


def tensors_of(values: Iterable[object], depth: int) -> Iterator[torch.Tensor]:
    """The tensors with a dimension in nested lists, tuples and mappings, `depth` levels deep."""
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.dim():
                yield value
        elif depth and isinstance(value, Mapping):
            yield from tensors_of(value.values(), depth - 1)
        elif depth and isinstance(value, (list, tuple)):
            yield from tensors_of(value, depth - 1)
