"""The message of a process about losses that were not finite."""

from __future__ import annotations

from typing import ClassVar

from gpurun.records.record import record


@record
class NonfiniteEvent:
    """A loss was NaN or infinite. Written when that is first seen, and again when the process ends.

    `step` is the first such step and `loss` its loss in words. `last_finite_step`: the last step
    before it whose loss was looked at, None if there was none: of short steps not every loss is
    looked at. `seen`: such steps so far. `skipped`: optimizer steps that were left out.
    """

    kind: ClassVar[str] = "nonfinite"
    step: int
    loss: str
    last_finite_step: int | None
    seen: int
    skipped: int
    action: str
