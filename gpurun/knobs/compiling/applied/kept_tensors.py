"""Tensors that a model's forward pass keeps: a mask made once, the state of a recurrent layer.

CUDA graphs write their results to the same memory in each step. What a model keeps of an earlier
step is then another value, and torch raises an error where the model reads it.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import Module


class KeptTensors:
    """Tells which attributes of a module, and of those below it, hold a CUDA tensor anew."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._before = _held(module)

    def name_of_new(self) -> str | None:
        """The name of such an attribute, as in "encoder.mask"; None if there is none."""
        known = {key: id(tensor) for key, tensor in self._before.items()}
        held = _held(self._module).items()
        new = (name for name, tensor in held if known.get(name) != id(tensor))
        return next(new, None)


def _held(module: Module) -> dict[str, Tensor]:
    """The CUDA tensors in plain attributes, by name: neither parameters nor buffers."""
    return {
        f"{prefix}.{name}" if prefix else name: value
        for prefix, part in module.named_modules()
        for name, value in vars(part).items()
        if isinstance(value, Tensor) and value.is_cuda
    }
