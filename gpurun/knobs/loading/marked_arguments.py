"""Arguments of a loader that a knob of ours knows again as its own."""

from __future__ import annotations


class MarkedTrue(int):
    """True; it shows and pickles as such. Made by `MarkedTrue(True)`; a script has no such True."""

    def __repr__(self) -> str:
        return "True"

    def __reduce__(self) -> tuple[type[bool], tuple[int]]:
        return bool, (1,)


class MarkedInt(int):
    """A number of workers; it shows and pickles as such."""

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)


class AddedWorkers(MarkedInt):
    """The workers of a loader that has none in the script."""
