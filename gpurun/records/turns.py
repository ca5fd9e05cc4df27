"""The hand-over of a live pair: one line for each turn's order, one for what was counted in it."""

from __future__ import annotations

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
        """Whether there is no further turn."""
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
class Turn:
    """What one side counted in one turn. The first answer of a side has no steps: it is ready."""

    steps: int
    nanoseconds: int

    @property
    def step_seconds(self) -> float:
        """The mean time of a step."""
        return self.nanoseconds / self.steps / 1e9

    def line(self) -> bytes:
        """As it is sent."""
        return b"%d %d\n" % (self.steps, self.nanoseconds)

    @classmethod
    def read(cls, line: bytes) -> Turn:
        """From what was sent; `ValueError` if that is no answer."""
        steps, nanoseconds = map(int, line.split())
        return cls(steps, nanoseconds)
