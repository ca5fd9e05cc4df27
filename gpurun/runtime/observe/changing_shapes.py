"""True if the shapes of a model's inputs change all the time, as sentences of any length do.

Trials look for it: a compiler then compiles more than once, and CUDA graphs are recorded for each
shape.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

from gpurun.records.events import CHANGING_SHAPES
from gpurun.runtime.observe.root_inputs import first_tensor
from gpurun.runtime.observe.root_modules import ROOTS
from gpurun.runtime.observe.script_traits import TRAITS

NAME = "look for changing shapes"
CALLS = 64
"""The number of root calls that are looked at."""
MANY = 6
"""Two roots (a GAN's), each with a smaller last batch, have four shapes."""


def watch() -> None:
    """Count the shapes of what the roots are given while gradients are recorded."""
    left = CALLS
    shapes: set[torch.Size] = set()

    def given(inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
        nonlocal left
        left -= 1
        first = first_tensor(*inputs) if torch.is_grad_enabled() else None
        if first is not None:
            shapes.add(first.shape)
        if len(shapes) >= MANY:
            TRAITS.note(CHANGING_SHAPES, f"{len(shapes)} shapes in {CALLS - left} calls")
        if not left or len(shapes) >= MANY:
            ROOTS.around.remove(NAME)
        return inputs

    ROOTS.around.add(NAME, nullcontext, None, lambda error: None, given)
