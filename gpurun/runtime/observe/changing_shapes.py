"""True if the shapes of a model's inputs change all the time, as sentences of any length do.

Trials look for it: a compiler then compiles more than once, and CUDA graphs are recorded for each
shape.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from gpurun.records.messages.traits import CHANGING_SHAPES
from gpurun.runtime.observe.root_inputs import first_tensor
from gpurun.runtime.observe.root_modules import ROOTS
from gpurun.runtime.observe.script_traits import TRAITS

NAME = "look for changing shapes"
CALLS = 64
"""The number of root calls with gradients that are looked at."""
MANY, MORE_EACH = 6, 2
"""One root with a smaller last batch has two shapes, and each further root as many more."""


def watch() -> None:
    """Count the shapes of what the roots are given while gradients are recorded."""
    left = CALLS
    shapes: set[torch.Size] = set()

    def given(inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        nonlocal left
        first = first_tensor(*inputs) if torch.is_grad_enabled() else None
        if first is None:
            return inputs
        left -= 1
        shapes.add(first.shape)
        many = len(shapes) >= MANY + MORE_EACH * (len(ROOTS.modules()) - 1)
        if many:
            TRAITS.note(CHANGING_SHAPES, f"{len(shapes)} shapes in {CALLS - left} calls")
        if many or not left:
            ROOTS.around.remove(NAME)
        return inputs

    ROOTS.around.add(NAME, nullcontext, None, lambda error: None, given)
