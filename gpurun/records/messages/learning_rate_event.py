"""The event that tells the learning rates of a process."""

from __future__ import annotations

from typing import ClassVar

from gpurun.records.record import record


@record
class LearningRateEvent:
    """The learning rates now, written at most twice a second and only if one has changed.

    `rates`: that of the first parameter group of each optimizer, None if it is a tensor.
    """

    kind: ClassVar[str] = "learning_rate"
    clock_ns: int
    rates: tuple[float | None, ...]
