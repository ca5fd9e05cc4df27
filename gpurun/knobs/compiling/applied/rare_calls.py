"""Training calls that are not worth a compilation: the last, smaller batch of an epoch.

Torch compiles a function again for other shapes. That takes up to a minute, and what it then makes
for any size is slower for the usual one, too.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gpurun.knobs.applied.autograd_state import is_checkpointed
from gpurun.knobs.applied.tensor_trees import leaves

FIRST_CALLS = 12
"""What comes among so many first calls is usual. The measured steps of a trial come after them."""
MOST_RARE = 0.1
"""Where more than this part of all calls have other shapes, sizes change all the time."""

Shapes = tuple[torch.Size, ...]


class RareCalls:
    """Tells the last batches among the training calls of one module, by the shapes of its inputs.

    Such a call comes alone between usual ones, and its inputs are smaller.
    """

    def __init__(self) -> None:
        self._usual: set[Shapes] = set()
        self._largest = 0
        """Elements of the largest inputs among the first calls."""
        self._calls = self._others = 0
        self._before: Shapes = ()
        self._over = False
        """True once torch is to decide: sizes change all the time, or the shapes are not known."""

    def is_rare(self, given: object) -> bool:
        """True if the call that now comes, with these arguments, is rare."""
        if self._over or not torch.is_grad_enabled() or is_checkpointed():
            return False  # what a checkpoint computes again must run the same code
        try:
            return self._is_rare(leaves(given))
        except Exception:  # a tensor without sizes
            self._over = True
            return False

    def _is_rare(self, tensors: list[Tensor]) -> bool:
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
        return not self._over and elements < self._largest and _has_room(tensors)


def _has_room(tensors: list[Tensor]) -> bool:
    """True if what runs as written fits beside what CUDA graphs keep: it cannot use their memory.

    The memory that is free must be as much as this process has ever taken.
    """
    device = next((tensor.device for tensor in tensors if tensor.is_cuda), None)
    if device is None:
        return True
    free, _ = torch.cuda.mem_get_info(device)
    return free >= torch.cuda.max_memory_reserved(device)
