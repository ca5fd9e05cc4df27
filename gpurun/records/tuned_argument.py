"""An argument of the script's own that the user asked to tune (`--lr @tune:0.1,0.2`)."""

from __future__ import annotations

from gpurun.records.record import record

MARK = "@tune"
"""The mark that stands in a tuned word in place of a value."""


@record
class TunedArgument:
    """`name`: "--lr", "lr=" for a word `lr=@tune:...`, "argument 2" for a second word without one.

    `word`: as typed, the word `position` (from 0) of the script's arguments. `values`: the first is
    the script as it is, the others are candidates. `effect`: "pipeline", "numerics" or "training".
    """

    name: str
    word: str
    position: int
    values: tuple[str, ...]
    effect: str

    def holding(self, value: str) -> str:
        """The word with a value in the place of the mark and its list."""
        return self.word.partition(MARK)[0] + value
