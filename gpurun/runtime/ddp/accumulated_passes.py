"""Counts the backward passes that add up to a step: gradients are averaged only after the last
one."""

from __future__ import annotations

from collections import deque

from gpurun.runtime.ddp.wrapped_root import WrappedRoot


class AccumulatedPasses:
    """The backward passes of one rank between two steps of an optimizer."""

    def __init__(self) -> None:
        self.left: int | None = None
        """Batches left in the loader that was read last; None if that is not known."""
        self._passes = 0
        self._calls = 0
        """Calls of root modules since the last step."""
        self._of_steps: deque[int] = deque(maxlen=2)
        """The number of passes in each of the last steps."""
        self._add_up = True
        """True if passes between two steps add up; else the script reads the gradients of each."""
        self._seen = (0, 0)
        """A parameter and its version, at the last call of a root."""

    def called(self, root: WrappedRoot) -> None:
        """A root is called. Were the gradients read, and the weights moved, since its last pass?"""
        self._calls += 1
        one = root.one if self._add_up else None
        if one is None:
            return
        seen, self._seen = self._seen, (id(one), one._version)
        moved = seen[0] == id(one) and seen != self._seen
        if self._passes and (moved or one.grad is None):
            self._add_up = False

    def over(self) -> None:
        """A backward pass is over."""
        self._passes += 1

    def stepping(self) -> None:
        """An optimizer is about to step. Passes of one call count singly: the script may read each
        gradient.
        """
        self._of_steps.append(self._passes if self._calls == self._passes else 1)
        self._passes, self._calls = 0, 0

    def gradients_read(self) -> None:
        """The script reads gradients before the pass that was taken for the last one."""
        self._of_steps.clear()

    def next_is_last(self) -> bool:
        """True if a step follows on the next backward pass, as far as the last steps tell."""
        if not self._add_up or len(set(self._of_steps)) != 1:
            return True
        to_come = self._of_steps[0] - 1 - self._passes
        return to_come <= 0 or (self.left is not None and self.left < to_come)
