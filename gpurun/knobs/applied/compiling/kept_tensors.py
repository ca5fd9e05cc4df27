"""Tensors that a model's forward pass keeps: a mask made once, weights that follow another model.

CUDA graphs write their results to the same memory in each step. What a model keeps of an earlier
step is then another value, and torch raises an error where it is read.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import Module


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
