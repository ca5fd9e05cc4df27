"""Calls that are not worth a compilation: the last batch of an epoch, a short evaluation.

Torch compiles a function again for other shapes, and without gradients. That takes up to a minute,
and what it then makes for any size is slower for the usual one, too.
"""

from __future__ import annotations

import torch

from gpurun.knobs.applied.tensor_trees import leaves

FIRST_CALLS = 16
"""What comes among so many first calls is usual."""
MOST_RARE = 0.1
"""Of more than this part of all calls compiled code is worth its compilation."""

Kind = tuple[bool, tuple[torch.Size, ...]]


class RareCalls:
    """Tells the rare calls of one module, by the shapes of their inputs and by their gradients."""

    def __init__(self) -> None:
        self._usual: set[Kind] = set()
        self._largest = 0
        """Elements of the largest inputs among the first calls."""
        self._calls = self._rare = 0
        self._over = False

    def is_rare(self, given: object) -> bool:
        """True if a call with these arguments is rare; each call is to be asked about once.

        False for ever once such calls are no longer few. A larger call than the usual ones is
        never rare: compiled code may be what makes it fit into memory.
        """
        if self._over:
            return False
        tensors = leaves(given)
        kind = torch.is_grad_enabled(), tuple(tensor.shape for tensor in tensors)
        self._calls += 1
        if kind in self._usual:
            return False
        elements = sum(tensor.numel() for tensor in tensors)
        if self._calls <= FIRST_CALLS:
            self._usual.add(kind)
            self._largest = max(self._largest, elements)
            return False
        self._rare += 1
        self._over = self._rare > MOST_RARE * self._calls
        return not self._over and elements <= self._largest
