"""Parts of a model that matter to a compiler: blocks of layers that repeat, tensors that it keeps.

Blocks compute alike, and are compiled once for all. Tensors that a forward pass keeps are a mask
made once, or weights that follow another model. CUDA graphs write their results to the same memory
in each step: what a model keeps of an earlier step is then another value, and torch raises an error
where it is read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence

import torch
from torch import Tensor
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


class KeptTensors:
    """The tensors of a module, and of those below it, that its first forward pass puts there."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._before = {tensor.data_ptr() for _, _, tensor in _held(module)}

    def new(self) -> str | None:
        """The name of one, None if there is none."""
        return next((name for _, name, _ in self._found()), None)

    def copy_new(self) -> str | None:
        """Give each new one memory of its own; the name of one, None if there is none.

        One with a gradient stays: its copy would be another tensor to autograd.
        """
        name = None
        for part, key, tensor in self._found():
            name = name or key
            if key in vars(part) and not tensor.requires_grad:
                vars(part)[key] = tensor.clone()
            elif key not in vars(part):
                with torch.no_grad():
                    tensor.data = tensor.data.clone()
        return name

    def _found(self) -> Iterator[tuple[Module, str, Tensor]]:
        for part, name, tensor in _held(self._module):
            if tensor.data_ptr() not in self._before:
                yield part, name, tensor


def _held(module: Module) -> Iterator[tuple[Module, str, Tensor]]:
    """The strided tensors in attributes, parameters and buffers, with who has them by what name."""
    for part in list(module.modules()):
        named = {**vars(part), **part._parameters, **part._buffers}
        for name, value in named.items():
            if isinstance(value, Tensor) and value.layout is torch.strided:
                yield part, name, value
