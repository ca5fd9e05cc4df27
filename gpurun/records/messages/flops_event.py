"""The message of a process about the arithmetic of one of its steps."""

from __future__ import annotations

from typing import ClassVar

from gpurun.records.record import record


@record
class FlopsEvent:
    """The floating-point operations of one step of a clock, in one process.

    FLOPs of matrix products, convolutions and attention, without recomputed activations; None if
    they could not be counted, and `detail` gives the reason.
    """

    kind: ClassVar[str] = "flops"
    step_clock: str
    flops: int | None
    detail: str = ""
