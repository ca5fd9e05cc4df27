"""The message of a trial in which loader and model each ran alone."""

from __future__ import annotations

from typing import ClassVar

from gpurun.records.record import record


@record
class CeilingsEvent:
    """The outcome of a trial for the ceilings.

    `resident`: one batch fed its measured steps, which are those of the model alone.
    `loader_samples_per_second`: of the loader alone; None where that failed, and `detail` says why.
    """

    kind: ClassVar[str] = "ceilings"
    resident: bool
    loader_samples_per_second: float | None
    detail: str = ""
