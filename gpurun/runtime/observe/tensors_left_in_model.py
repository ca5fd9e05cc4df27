"""True if a model's forward pass keeps tensors of its own, seen at the first call of each root.

Trials look for it once, so that CUDA graphs, which would overwrite what is kept, are not tried.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch.nn import Module

from gpurun.knobs.applied.compiling.kept_tensors import KeptTensors
from gpurun.records.messages.traits import KEEPS_TENSORS
from gpurun.runtime.core.patching import guarded
from gpurun.runtime.observe.root_modules import ROOTS
from gpurun.runtime.observe.script_traits import TRAITS

NAME = "look for kept tensors"
CALLS = 8
"""The number of root calls that are examined: a script may have several roots."""


def watch() -> None:
    """Look at what the first call of each root leaves in it."""
    left = CALLS
    roots: list[KeptTensors] = []

    def found(module: Module) -> None:
        if left:
            roots.append(KeptTensors(module))

    def returned(result: object) -> object:
        nonlocal left
        left -= 1
        if not left:
            ROOTS.around.remove(NAME)
        trains = torch.is_grad_enabled()
        for name in filter(None, [root.new() for root in roots] if trains else []):
            TRAITS.note(KEEPS_TENSORS, name)
        if trains or not left:
            roots.clear()
        return result

    ROOTS.on_root.append(guarded(NAME, found))
    ROOTS.around.add(NAME, nullcontext, returned, lambda error: None)
