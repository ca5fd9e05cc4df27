"""The message of a trial in which loader and model each ran alone."""

from __future__ import annotations

from typing import ClassVar

from gpurun.records.record import record


@record
class CeilingsEvent:
    """The outcome of a trial for the ceilings.

    `script_ns`, `model_ns`: begin and end of its steps with the script as it is, and with one batch
    that the loader hands out again and again; None where there were none.
    `loader_samples_per_second`: of the loader alone; None where that failed, and `detail` says why.
    """

    kind: ClassVar[str] = "ceilings"
    script_ns: tuple[int, int] | None
    model_ns: tuple[int, int] | None
    loader_samples_per_second: float | None
    detail: str = ""
