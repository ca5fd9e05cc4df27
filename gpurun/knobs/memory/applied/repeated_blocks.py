"""Find the blocks of which a model is built: a class of modules that repeats and holds the most."""

from __future__ import annotations

import torch
from torch.nn import Module

SHARE = 0.8
"""Classes that hold this part of the most parameters that any holds are as good as that one."""
LEAST = 2
"""A block that does not repeat is no block."""


def repeated_blocks(root: Module) -> list[Module]:
    """The model's blocks in the order in which it names them, none if nothing repeats.

    A block has modules of its own (a lone layer keeps little beside its input) and lies in no other
    block. It takes the most numerous of the classes that hold most parameters: the bottlenecks of a
    ResNet, not its four stages. Among equals it takes the outermost.
    """
    found: dict[type, list[Module]] = {}
    _collect(root, found, frozenset())
    repeated = {cls: blocks for cls, blocks in found.items() if len(blocks) >= LEAST}
    held = {cls: sum(_parameters(block) for block in blocks) for cls, blocks in repeated.items()}
    most = max(held.values(), default=0)
    if not most:
        return []
    large = [blocks for cls, blocks in repeated.items() if held[cls] >= SHARE * most]
    return max(large, key=len)


def _collect(module: Module, found: dict[type, list[Module]], around: frozenset[type]) -> None:
    containers = (torch.nn.ModuleList, torch.nn.ModuleDict)
    for child in module.children():
        cls = type(child)
        inner = around
        if next(child.children(), None) is not None and not isinstance(child, containers):
            if cls not in around and not any(child is block for block in found.get(cls, ())):
                found.setdefault(cls, []).append(child)
            inner = around | {cls}
        _collect(child, found, inner)


def _parameters(module: Module) -> int:
    return sum(p.numel() for p in module.parameters())
