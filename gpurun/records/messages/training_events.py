"""Messages of a process beside its main events: training, outputs, sites of settings, its exit."""

from __future__ import annotations

import enum
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


@record
class TensorFigures:
    """Figures about one tensor (or number) that a root module took or returned.

    `values` are those at places that depend on its shape alone, None where one is not finite.
    `norm`: the L2 norm of all its numbers, of integers their sum; None where it is not finite or
    was not taken. `largest`: of some rows (the last dimension), where their largest number stands;
    `tops`: what it is; `margins`: by how much it exceeds the second largest.
    """

    path: str
    """Where it stands in what holds it: "[0].logits"."""
    dtype: str
    shape: tuple[int, ...]
    values: tuple[float | None, ...]
    norm: float | None
    not_finite: int
    """So many of its numbers are not finite."""
    largest: tuple[int, ...]
    tops: tuple[float | None, ...] = ()
    margins: tuple[float | None, ...] = ()


@record
class OutputsEvent:
    """One call of a root module without gradients, as trials compare what it returned.

    `call` counts such calls of the process from 1, `trained` the backward passes before it.
    `structure`: the containers of the output and where its tensors stand. `overwritten`: after the
    next call the output held other numbers; None where that was not looked at.
    """

    kind: ClassVar[str] = "outputs"
    call: int
    trained: int
    module: str
    inputs: tuple[TensorFigures, ...]
    outputs: tuple[TensorFigures, ...]
    structure: str
    draws: bool | None
    """True if torch drew random numbers in the call; None if that was not checked."""
    overwritten: bool | None
    moved: bool | None = None
    """True if buffers of the module changed in the call; None if that was not checked."""


class SiteKind(enum.Enum):
    """`LOADER`, `OPTIMIZER`: a call that builds one. `ROOT_CALL`: a call of a root module.
    `SYNCHRONIZE`: a call of `torch.cuda.synchronize`. `MODEL`: a call, somewhere in a statement,
    after which a name of that scope holds the root module and its optimizer is built."""

    LOADER = "loader"
    OPTIMIZER = "optimizer"
    MODEL = "model"
    ROOT_CALL = "root_call"
    SYNCHRONIZE = "synchronize"


@record
class SourceSiteEvent:
    """A call in the user's source, with the position that python gives it.

    `file`: its path from the process's working folder. `line` counts from 1. `end_line`, and
    `column` and `end_column` in bytes of UTF-8 from 0, are None where python does not know them
    (before 3.11). `name`: the key of a loader (`file:line#n`), the class of an optimizer, the
    expression that holds the model (`model`, `self.net`), else "". `root`: which root module that
    is, from 0; its better places come first.
    """

    kind: ClassVar[str] = "source_site"
    what: SiteKind
    file: str
    line: int
    end_line: int | None
    column: int | None
    end_column: int | None
    name: str = ""
    root: int = 0


@record
class StopEvent:
    """The trial stopped itself. `reason`: "enough" or "max_steps".

    The measured window runs from `window_begin_ns` (None: it never began, or turns tell it) to
    `window_end_ns`.
    """

    kind: ClassVar[str] = "stop"
    reason: str
    steps: int
    window_begin_ns: int | None
    window_end_ns: int


@record
class ExitRecordEvent:
    """A rank's or a trial's python exits; `error`: the uncaught exception by which it does, None
    without one. `lacks_input`: `input()` raised it, since there was nothing to read.
    """

    kind: ClassVar[str] = "exit_record"
    unix_time_ns: int
    error: str | None
    lacks_input: bool = False


@record
class EndEvent:
    """Last line of a process that ended in good order."""

    kind: ClassVar[str] = "end"
    clock_ns: int
    peak_rss_bytes: int | None
    peak_allocated_bytes: int | None
    peak_reserved_bytes: int | None
    allocator_retries: int | None
    cpu_seconds: float | None
    saves: int | None = None
    """Calls of `torch.save`, and the seconds that they took together; None: nobody counted."""
    save_seconds: float | None = None
