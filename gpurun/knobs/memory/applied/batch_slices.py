"""Cut what a module is given into slices of rows, and join what it returns for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpurun.knobs.applied.tensor_trees import foreign, leaves, map_tensors
from gpurun.knobs.memory.applied.recompute import agree


class NotPerSample(Exception):
    """What a module returns for slices is not what it returns for the whole; says why."""


def rows_of(given: object) -> int:
    """The leading dimension of the first tensor that has one, 0 if none has."""
    return next((int(tensor.shape[0]) for tensor in leaves(given) if tensor.dim()), 0)


def signature_of(given: object, rows: int) -> tuple[tuple[int, bool], ...]:
    """Of each tensor its number of dimensions, and whether it has a row a sample."""
    return tuple((t.dim(), bool(t.dim() and t.shape[0] == rows)) for t in leaves(given))


def slice_sizes(rows: int, parts: int) -> list[int]:
    """At most `parts` slices of `rows`, as equal as can be and none of a lone row."""
    parts = max(1, min(parts, rows // 2))
    return [rows // parts + (i < rows % parts) for i in range(parts)]


def rows_from(given: object, rows: int, start: int, size: int) -> Any:
    """`given` with the rows from `start` of every tensor that has `rows` of them."""

    def cut(tensor: Tensor) -> Tensor:
        whole = not tensor.dim() or tensor.shape[0] != rows
        return tensor if whole else tensor[start : start + size]

    return map_tensors(given, cut)


def kinds_of_output(
    whole: object, parts: Sequence[object], sizes: Sequence[int], near: float
) -> list[bool]:
    """For each tensor of an output whether it has a row a sample; if not, it is no sample's.

    `whole` was returned for all rows, `parts` for slices of them; `near` is the relative difference
    that is rounding. Raises NotPerSample when the parts do not make the whole.
    """
    _same_structure([whole, *parts])
    kinds = []
    for tensor, *pieces in zip(leaves(whole), *map(leaves, parts), strict=True):
        by_row = _have_rows(pieces, sizes) and _have_rows([tensor], [sum(sizes)])
        if by_row and agree(tensor, torch.cat(pieces), near):
            kinds.append(True)
        elif all(agree(tensor, piece, near) for piece in pieces):
            kinds.append(False)
        elif by_row:
            raise NotPerSample("samples of a batch influence each other")
        else:
            raise NotPerSample("it returns a tensor without a row for each sample (a loss?)")
    if True not in kinds:
        raise NotPerSample("it returns nothing that has a row for each sample")
    return kinds


def join(parts: Sequence[object], sizes: Sequence[int], kinds: Sequence[bool]) -> Any:
    """One output out of those of the slices. Raises NotPerSample where they do not fit."""
    _same_structure(parts)
    columns = list(zip(*map(leaves, parts), strict=True))
    if len(columns) != len(kinds):
        raise NotPerSample("it returns something else when it trains")
    if not all(
        _have_rows(pieces, sizes) for pieces, by_row in zip(columns, kinds, strict=True) if by_row
    ):
        raise NotPerSample("it returns something else when it trains")
    joined = iter(
        torch.cat(pieces) if by_row else pieces[0]
        for pieces, by_row in zip(columns, kinds, strict=True)
    )
    return map_tensors(parts[0], lambda tensor: next(joined))


def _have_rows(pieces: Sequence[Tensor], sizes: Sequence[int]) -> bool:
    shapes = [piece.shape for piece in pieces]
    return all(s and s[0] == size for s, size in zip(shapes, sizes, strict=True))


def _same_structure(outputs: Sequence[object]) -> None:
    strange = foreign(outputs[0])
    if strange is not None:
        raise NotPerSample(f"it returns an object ({strange})")
    shapes = [map_tensors(output, lambda tensor: None) for output in outputs]
    if any(shape != shapes[0] for shape in shapes):
        raise NotPerSample("what it returns beside tensors depends on the batch")
