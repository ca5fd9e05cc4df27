"""How the batches of a training come: is each backward pass of the one that was handed out last?

What is told of here happens in the script's own thread, so that all ranks see the same at the same
pass, but for `ahead`.
"""

from __future__ import annotations

from typing import Any

from gpurun.runtime.identity import IdentityMap


class Feeding:
    """That of one rank. `begun`: so many times something began to be trained, or to feed it.

    `regular`: each pass since then may be of the batch that was handed out last. `ahead`: a thread
    of the script reads batches; how far it is differs between ranks.
    """

    def __init__(self) -> None:
        self.begun = 0
        self.regular = True
        self.ahead = False
        self._met: IdentityMap[bool] = IdentityMap()
        self._handed: dict[int, int] = {}
        """Batches that iterators gave since the last pass."""
        self._passes = 0
        self._ahead: set[int] = set()
        """Iterators that gave a batch before the one before was trained on."""
        self._over = False
        """Whether an iterator came to its end, and none gave anything since."""

    def meet(self, something: Any, feeds: bool = False) -> None:
        """A model, an optimizer or a loader (it `feeds`) takes part: what was learned may hold no
        more if it is another one.
        """
        if something not in self._met:
            self._met[something] = True
            self.begun += 1
            if feeds:
                self._passes, self.regular = 0, True

    def handed(self, iterator: int) -> None:
        """One that is known by this number gave a batch."""
        self._handed[iterator] = self._handed.get(iterator, 0) + 1
        self._over = False
        if self._handed[iterator] > 1:
            self._ahead.add(iterator)
        # before the first pass a script may look at a batch, by an iterator for that alone
        if iterator in self._ahead or (self._passes and sum(self._handed.values()) > 1):
            self.regular = False

    def ended(self, iterator: int) -> None:
        """One came to its end."""
        self._ahead.discard(iterator)
        self._over = True

    def look(self) -> None:
        """A backward pass begins."""
        self.regular = self.regular and not self._over

    def went_back(self) -> None:
        """It is over."""
        self._passes += 1
        self._handed.clear()
