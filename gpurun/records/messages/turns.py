"""The hand-over of a live pair: one line for each turn's order, one for what was counted in it."""

from __future__ import annotations

from typing import ClassVar

from gpurun.records.record import record

ORDERS = "turn-orders"
"""FIFO of the control folder, from the launcher to the side."""
ANSWERS = "turn-answers"
"""FIFO of the control folder, from the side to the launcher."""


@record
class TurnOrder:
    """A turn lasts at least so long, and for so many counted steps. Zero steps: no turn more."""

    nanoseconds: int
    least_steps: int

    @property
    def ends(self) -> bool:
        """True if there is no further turn."""
        return self.least_steps == 0

    def line(self) -> bytes:
        """As it is sent."""
        return b"%d %d\n" % (self.nanoseconds, self.least_steps)

    @classmethod
    def read(cls, line: bytes) -> TurnOrder:
        """From what was sent; `ValueError` if that is no order."""
        nanoseconds, least_steps = map(int, line.split())
        return cls(nanoseconds, least_steps)


@record
class TurnEvent:
    """A turn begins to count ("begin"), or ends ("end"): the side is frozen from there on.

    The first one is an end: the side has warmed up.
    """

    kind: ClassVar[str] = "turn"
    phase: str
    clock_ns: int


@record
class Turn:
    """The counts of one side in one turn. The first answer of a side has no steps: it is ready.

    `fed`: a loader with workers is alive. `epoch_starts`: so many epochs began in what was counted.
    `epoch_steps`: steps of the last whole epoch, 0 where none was seen yet. `all_steps` and
    `peak_bytes`: steps of the process so far, and the peak of its memory by then, on a GPU where
    one is in use.
    """

    steps: int
    nanoseconds: int
    fed: bool = False
    epoch_starts: int = 0
    epoch_steps: int = 0
    all_steps: int = 0
    peak_bytes: int = 0

    @property
    def step_seconds(self) -> float:
        """The mean time of a step."""
        return self.nanoseconds / self.steps / 1e9

    def line(self) -> bytes:
        """As it is sent."""
        figures = (
            self.steps, self.nanoseconds, self.fed, self.epoch_starts, self.epoch_steps,
            self.all_steps, self.peak_bytes,
        )  # fmt: skip
        return b" ".join(b"%d" % figure for figure in figures) + b"\n"

    @classmethod
    def read(cls, line: bytes) -> Turn:
        """From what was sent; `ValueError` if that is no answer."""
        steps, nanoseconds, fed, *more = map(int, line.split())
        starts, epoch_steps, all_steps, peak_bytes = more
        return cls(steps, nanoseconds, bool(fed), starts, epoch_steps, all_steps, peak_bytes)
