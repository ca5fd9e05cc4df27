"""The blocks of layers that a model repeats: they compute alike, and are compiled once for all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

from torch.nn import Module, Sequential

MOST_OF_IT = 0.5
"""Blocks that hold a smaller part of a model's layers are not what takes its time. ResNet-50 has
three quarters in repeated blocks, a transformer nearly all."""


def repeated_blocks(root: Module) -> list[list[Module]]:
    """Groups of blocks that have the same class and shapes, [] if most layers are in none.

    Floats and words, such as a rate of dropout, are constants of compiled code: blocks that differ
    in one are no group. Blocks are siblings: members of a list, or attributes of one module. The
    outermost count, but lists before attributes: two towers with a list of blocks are no blocks.
    """
    groups: dict[Hashable, list[Module]] = {}
    for block in dict.fromkeys(_blocks(root)):
        groups.setdefault(_kind(block), []).append(block)
    inside = {part for blocks in groups.values() for block in blocks for part in block.modules()}
    layers = [part for part in root.modules() if not part._modules]
    most = sum(part in inside for part in layers) > MOST_OF_IT * len(layers)
    return list(groups.values()) if most else []


def count_blocks(groups: Sequence[Sequence[Module]]) -> dict[str, int]:
    """The number of blocks by class."""
    return dict(Counter(type(block).__name__ for blocks in groups for block in blocks))


def _blocks(parent: Module) -> Iterator[Module]:
    siblings = dict(_siblings(parent, isinstance(parent, Sequential)))
    kinds = {part: _kind(part) for part in siblings if part._modules}
    alike = Counter(kinds.values())
    for part, in_list in siblings.items():
        repeated = part in kinds and alike[kinds[part]] > 1
        inside = [] if repeated and in_list else list(_blocks(part))
        yield from [part] if repeated and not inside else inside


def _siblings(parent: Module, in_list: bool) -> Iterator[tuple[Module, bool]]:
    """The modules right below that can be called, and whether a list holds them."""
    for part in parent.children():
        if type(part).forward is Module.forward:
            yield from _siblings(part, True)
        else:
            yield part, in_list


def _kind(block: Module) -> Hashable:
    tensors = (*block.named_parameters(), *block.named_buffers())
    parts = list(block.named_modules())
    return (
        tuple((name, type(part)) for name, part in parts),
        tuple(x for _, p in parts for x in vars(p).items() if isinstance(x[1], (bool, float, str))),
        tuple((name, tensor.shape, tensor.dtype) for name, tensor in tensors),
    )
