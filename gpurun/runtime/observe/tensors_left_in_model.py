"""True if a model's forward pass keeps tensors of its own, seen at the first call of each root.

Trials look for it once, so that CUDA graphs, which would overwrite what is kept, are not tried.
"""

from __future__ import annotations

import torch
from torch.nn import Module

from gpurun.knobs.compiling.applied.kept_tensors import KeptTensors
from gpurun.records.events import KEEPS_TENSORS
from gpurun.runtime.observe.root_modules import ROOTS
from gpurun.runtime.observe.script_traits import TRAITS

NAME = "look for kept tensors"
CALLS = 8
"""The number of root calls that are examined: a script may have several roots."""


class _Watch:
    """The context of the first root calls."""

    def __init__(self) -> None:
        self._roots: list[KeptTensors] = []
        self._left = CALLS

    def add(self, module: Module) -> None:
        """Remember what a root holds before its first call."""
        self._roots.append(KeptTensors(module))

    def __enter__(self) -> None:
        """Nothing to do before a call."""

    def __exit__(self, kind: object, *_: object) -> None:
        """Note the name of a tensor that a call with gradients has left in a root."""
        self._left -= 1
        if not self._left:
            ROOTS.around.remove(NAME)
        if kind is not None or not (self._roots and torch.is_grad_enabled()):
            return
        for root in self._roots:
            name = root.new()
            if name is not None:
                TRAITS.note(KEEPS_TENSORS, name)
        self._roots.clear()


def watch() -> None:
    """Look at what the first call of each root leaves in it."""
    seen = _Watch()
    ROOTS.on_root.append(seen.add)
    ROOTS.around.add(NAME, lambda: seen, None, lambda error: None)
