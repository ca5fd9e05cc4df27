"""Training calls that are not worth a compilation: the last, smaller batch of an epoch.

Torch compiles a function again for other shapes. That takes up to a minute, and what it then makes
for any size is slower for the usual one, too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import Module

from gpurun.knobs.applied.autograd_state import is_checkpointed

FIRST_CALLS = 12
"""What comes among so many first calls is usual: the audited and warm-up steps of a trial."""
MOST_RARE = 0.1
"""Where more than this part of all calls have other shapes, sizes change all the time."""
PLAIN_MEMORY = 2
"""Uncompiled code may keep this many times the memory that the process has ever reserved."""

Shapes = tuple[torch.Size, ...]


class RareCalls:
    """Tells the last batches among the training calls of a module, by the shapes of its inputs.

    Such a call comes alone between usual ones, and its inputs are smaller.
    """

    def __init__(self, module: Module) -> None:
        self._module = module
        self._usual: set[Shapes] = set()
        self._largest = 0
        """Elements of the largest inputs that are usual."""
        self._calls = self._others = 0
        self._before: Shapes = ()
        self._over = False
        """True once torch is to decide: sizes change all the time, or the shapes are not known."""

    def is_rare(self, tensors: Sequence[Tensor]) -> bool:
        """True if the call that now comes, with these inputs, is rare."""
        if self._over or not torch.is_grad_enabled() or is_checkpointed():
            return False  # what a checkpoint computes again must run the same code
        try:
            return self._is_rare(tensors)
        except Exception:  # a tensor without sizes
            self._over = True
            return False

    def _is_rare(self, tensors: Sequence[Tensor]) -> bool:
        shapes = tuple(tensor.shape for tensor in tensors)
        before, self._before = self._before, shapes
        self._calls += 1
        if shapes in self._usual:
            return False
        elements = sum(tensor.numel() for tensor in tensors)
        if self._calls <= FIRST_CALLS or shapes == before:
            self._usual.add(shapes)
            self._largest = max(self._largest, elements)
            return False
        self._others += 1
        self._over = self._others > MOST_RARE * self._calls
        return not self._over and elements < self._largest and _has_room(self._module)


def _has_room(module: Module) -> bool:
    """True if what runs as written surely fits beside what CUDA graphs keep for themselves."""
    device = next(module.parameters()).device
    if device.type != "cuda":
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return free >= PLAIN_MEMORY * torch.cuda.max_memory_reserved(device)
