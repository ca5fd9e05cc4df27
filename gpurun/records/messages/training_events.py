"""Messages of a process about its training: ceilings, arithmetic, learning rates, bad losses."""

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


@record
class WorkerTurnEvent:
    """A turn with so many loader workers is over; the times are of what counts in it."""

    kind: ClassVar[str] = "worker_turn"
    workers: int
    begin_ns: int
    end_ns: int


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


@record
class LearningRateEvent:
    """The learning rates now, written at most twice a second and only if one has changed.

    `rates`: that of the first parameter group of each optimizer, None if it is a tensor.
    """

    kind: ClassVar[str] = "learning_rate"
    clock_ns: int
    rates: tuple[float | None, ...]


@record
class NonfiniteEvent:
    """A loss was NaN or infinite. Written when that is first seen, and again when the process ends.

    `step` is the first such step and `loss` its loss in words. `last_finite_step`: the last step
    before it whose loss was looked at, None if there was none: of short steps not every loss is
    looked at. `seen`: such steps so far. `skipped`: optimizer steps that were left out. `origin`: a
    clause about where it came from, None where that was not asked for.
    """

    kind: ClassVar[str] = "nonfinite"
    step: int
    loss: str
    last_finite_step: int | None
    seen: int
    skipped: int
    action: str
    origin: str | None = None


@record
class OutOfMemoryEvent:
    """A GPU had no room, and the process ended. `where`: the script's line. `total_bytes`: of the
    device, or the part of it that torch may use. `free_bytes`: outside of torch's allocator, which
    has `reserved_bytes`. `part_bytes`: the bytes of these in use, by part of the training.
    `largest`: allocations in words, and their bytes. `expandable`: torch's segments grow."""

    kind: ClassVar[str] = "out_of_memory"
    where: str
    asked_bytes: int
    total_bytes: int
    free_bytes: int
    reserved_bytes: int
    part_bytes: dict[str, int]
    largest: tuple[tuple[str, int], ...]
    expandable: bool = False
