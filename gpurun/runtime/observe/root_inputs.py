"""What a root module is fed: its first tensor, and how many samples and tokens that is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

DEPTH = 3
"""How deep batches are nested where people nest them: a list of dicts of tensors."""


def first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any], tensor: type) -> Any:
    """The first tensor with a dimension in the arguments of a call, None if there is none."""
    for value in args:
        if isinstance(value, tensor) and value.shape:  # type: ignore[attr-defined]
            return value
    return next(_tensors((*args, *kwargs.values()), tensor, DEPTH), None)


def sizes(first: Any, boolean: Any) -> tuple[int, int]:
    """Leading dimension of the first tensor, and its elements if it is an integer matrix.

    `boolean` is `torch.bool`.
    """
    if first is None:
        return 0, 0
    shape, kind = first.shape, first.dtype
    if type(shape[0]) is not int:
        return 0, 0  # traced, by jit or dynamo: reading it would be recorded, or warned of
    if len(shape) != 2 or kind.is_floating_point or kind.is_complex or kind is boolean:
        return int(shape[0]), 0
    return int(shape[0]), int(shape[0] * shape[1])


def _tensors(values: Iterable[Any], tensor: type, depth: int) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tensor):
            if value.dim():  # type: ignore[attr-defined]
                yield value
        elif depth and isinstance(value, Mapping):
            yield from _tensors(value.values(), tensor, depth - 1)
        elif depth and isinstance(value, (list, tuple)):
            yield from _tensors(value, tensor, depth - 1)
