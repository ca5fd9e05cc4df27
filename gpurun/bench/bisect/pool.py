"""The trees of a search: each commit checked out and set up once, and only few at a time.

A search returns to the same commits (GOOD, the likely culprit and its parent), and setting one up
may take minutes; all of a long range would fill a disk.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from gpurun.bench.trees.sides import Side, Sides
from gpurun.records.spec import Trees

MOST_TREES = 4
"""Both ends of the range, and the two commits that are held against each other."""


class TreePool:
    """At most `most` trees; for a further one the one that was not used for longest goes.

    `make` opens the tree of a commit; `gone` hears of each that is removed, by its side's name.
    """

    def __init__(
        self,
        make: Callable[[str], AbstractContextManager[Sides]],
        gone: Callable[[str], None],
        most: int = MOST_TREES,
    ) -> None:
        self._make = make
        self._gone = gone
        self._most = most
        self._open: dict[str, tuple[Sides, ExitStack]] = {}

    def __contains__(self, commit: str) -> bool:
        return commit in self._open

    def get(self, commit: str) -> Sides | None:
        """The tree of a commit, now the one used last; None where it is not here."""
        entry = self._open.pop(commit, None)
        if entry is None:
            return None
        self._open[commit] = entry
        return entry[0]

    def add(self, commit: str) -> Sides:
        """The tree of a commit that is not here; `GpurunError` where it cannot be made."""
        with ExitStack() as stack:
            sides = stack.enter_context(self._make(commit))
            self._open[commit] = (sides, stack.pop_all())
        return sides

    def make_room(self) -> None:
        """Remove trees until there is room for one more."""
        while len(self._open) >= self._most:
            self.remove(next(iter(self._open)))

    def remove(self, commit: str) -> None:
        """Remove the tree of a commit, if it is here."""
        sides, stack = self._open.pop(commit, (None, None))
        if sides is not None and stack is not None:
            stack.close()
            self._gone(sides.current.name)

    def close(self) -> None:
        """Remove them all."""
        for commit in list(self._open):
            self.remove(commit)

    def watched(self, side: Side) -> Trees:
        """What launches of `side` have to record files of: its own tree, and all others here."""
        alive = (sides for sides, _ in self._open.values())
        roots = [root for sides in alive for root in (sides.current.tree.root, sides.users.root)]
        others = dict.fromkeys(str(root) for root in roots if root != side.tree.root)
        return Trees(own=str(side.tree.root), others=tuple(others))
