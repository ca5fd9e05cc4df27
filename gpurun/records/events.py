"""The user's process writes these events: `events-<process>.jsonl`, in the run folder.

Each line is `{"event": <kind>, ...fields}` with the fields of the record of that kind below. Times
are `time.perf_counter_ns()` of that process; `ProcessEvent` ties them to the wall clock.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any, ClassVar

from gpurun.records.messages.profile_events import HostSamplesEvent as HostSamplesEvent
from gpurun.records.messages.profile_events import MemoryTraceEvent as MemoryTraceEvent
from gpurun.records.messages.profile_events import ProfileEvent as ProfileEvent
from gpurun.records.messages.training_events import CeilingsEvent as CeilingsEvent
from gpurun.records.messages.training_events import EndEvent as EndEvent
from gpurun.records.messages.training_events import ExitRecordEvent as ExitRecordEvent
from gpurun.records.messages.training_events import FlopsEvent as FlopsEvent
from gpurun.records.messages.training_events import LearningRateEvent as LearningRateEvent
from gpurun.records.messages.training_events import NonfiniteEvent as NonfiniteEvent
from gpurun.records.messages.training_events import OutOfMemoryEvent as OutOfMemoryEvent
from gpurun.records.messages.training_events import OutputsEvent as OutputsEvent
from gpurun.records.messages.training_events import SourceSiteEvent as SourceSiteEvent
from gpurun.records.messages.training_events import StopEvent as StopEvent
from gpurun.records.messages.training_events import WorkerTurnEvent as WorkerTurnEvent
from gpurun.records.messages.turns import TurnEvent as TurnEvent
from gpurun.records.record import record

EVENTS_SCHEMA = "gpurun/events@1"

CLOCKS = ("optimizer", "backward", "forward")
"""The kinds of calls that may count as steps, best first."""


@record
class ProcessEvent:
    """First line of every file: which process this is. `rank` is None outside a distributed job."""

    kind: ClassVar[str] = "process"
    pid: int
    rank: int | None
    local_rank: int | None
    world_size: int | None
    argv: tuple[str, ...]
    python: str
    unix_time_ns: int
    clock_ns: int
    schema: str = EVENTS_SCHEMA


@record
class TorchEvent:
    """torch was imported: its version, its intra-op threads, and whether CUDA was usable then.

    `clock_ns`: when, by the process's clock; None in records from before it was kept.
    `changed_variables`: environment variables that were not as at the start of the process.
    """

    kind: ClassVar[str] = "torch"
    version: str
    threads: int
    cuda_devices: int | None
    clock_ns: int | None = None
    changed_variables: tuple[str, ...] = ()
    gpu_build: bool | None = None
    """True if torch is built for GPUs (CUDA or ROCm)."""
    switches: tuple[str, ...] = ()
    """Names of the environment variables that are set so as to slow training down."""


@record
class ImportsEvent:
    """Packages known to be slow that a trial had imported by its first step, in that order.

    `changed_variables`: environment variables that were not as at the start of the process.
    """

    kind: ClassVar[str] = "imports"
    modules: tuple[str, ...]
    changed_variables: tuple[str, ...] = ()


@record
class OriginsEvent:
    """Where a process loaded its modules from, of a launch that is one side of a comparison.

    Written when a module of another tree is loaded, with that one alone, and at the end of the
    process (`complete`). Modules are [name, file as python names it]; `__main__` is the script.
    """

    kind: ClassVar[str] = "origins"
    own: tuple[tuple[str, str], ...]
    """Modules of the side's own tree."""
    foreign: tuple[tuple[str, str], ...]
    """Modules of another tree of the comparison."""
    installed: tuple[tuple[str, str], ...]
    """Modules from the folders of packages, top-level ones only; empty unless `complete`."""
    search_path: tuple[str, ...]
    """Where the process then looked for modules (`sys.path`)."""
    complete: bool


@record
class FilesOpenedEvent:
    """The files of a benchmark's tree that the launch opened, by any of its processes, from the
    tree's top folder; written at the end of the first process. None: some may be missing."""

    kind: ClassVar[str] = "files_opened"
    files: tuple[str, ...] | None


@record
class PlantedEvent:
    """A slow-down that was planted on purpose in this process, written at its end.

    `step_seconds`: what was to be added to each step; `seconds`: what all `delays` together took,
    on the host's clock.
    """

    kind: ClassVar[str] = "planted"
    step_seconds: float
    delays: int
    seconds: float


@record
class ArgumentsEvent:
    """An argparse parser parsed the command line: each option with its flags and its value."""

    kind: ClassVar[str] = "arguments"
    options: tuple[dict[str, Any], ...]
    """Objects with `flags` (list of str), `dest` (str) and `value` (JSON scalar or its repr)."""


@record
class LoaderEvent:
    """A `torch.utils.data.DataLoader` was built.

    `key` is `file:line#ordinal` of the construction site. `length` and `dataset_length` are None
    where they have none. `picklable` is None when it was not tried.
    """

    kind: ClassVar[str] = "loader"
    loader: int
    key: str
    class_name: str
    subclass: bool
    dataset_class: str
    dataset_length: int | None
    length: int | None
    batch_size: int | None
    workers: int
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory: bool
    drop_last: bool
    iterable: bool
    custom_batch_sampler: bool
    start_method: str | None
    batch_size_argument: str | None
    """Source text of the batch size at the construction site ("args.batch_size", "32"), if seen."""
    in_script: bool = False
    """True if the script itself builds it, not a module that it imports."""


@record
class OptimizerEvent:
    """An optimizer was built. Hyper-parameters and device are those of its first parameters."""

    kind: ClassVar[str] = "optimizer"
    optimizer: int
    class_name: str
    module: str
    parameters: int
    groups: int
    hyperparameters: dict[str, Any]
    device: str = "cpu"


@record
class RootEvent:
    """A root module was found (the outermost module called while training)."""

    kind: ClassVar[str] = "root"
    root: int
    class_name: str
    parameters: int
    parameter_bytes: int
    dtypes: tuple[str, ...]
    device: str
    module_types: dict[str, int]
    """The number of submodules of each class, for instance {"Conv2d": 3, "Linear": 2}."""
    input_shape: tuple[int, ...] | None
    input_dtype: str | None
    compiled: bool
    compute_capability: tuple[int, int] | None = None
    """The compute capability of its GPU and the memory of the GPU or slice, as torch sees them."""
    device_memory_bytes: int | None = None
    device_name: str | None = None
    """The name of that GPU, for instance "NVIDIA H200"."""
    blocks: dict[str, int] = field(default_factory=dict)
    """The number of repeated blocks by class, for instance {"Block": 12}. They hold most layers."""


@record
class StepsEvent:
    """A batch of step rows; columns as in `StepRow`.

    `clock`: "optimizer", "backward" or "forward". Rows of the last two end with the first optimizer
    step of the process.
    """

    kind: ClassVar[str] = "steps"
    clock: str
    rows: tuple[tuple[Any, ...], ...]


class StepRow:
    """Column numbers of a row in `StepsEvent.rows`. A step covers the time since the row before it.

    Durations are nanoseconds on the host.

    * `SOURCE`: the optimizer's number (or 0).
    * `DEVICE_NS`: the time between the ends of the two steps on the device's clock, or None.
    * `COPY_NS`: device time of the copies to a GPU that the script made in it. None if they were
      not timed: only some early steps of a run are.
    * `SAMPLES` maps loader number to [data-set indices handed out, batches] of this step, None if
      no loader was read.
    * `INPUT_SAMPLES`: the leading dimension of a root's first tensor input. The calls of a root add
      up; among several roots the largest sum counts. `INPUT_CALLS`: the number of these calls.
    * `TOKENS`: the elements of that input if it is an integer matrix, else 0.
    * `LOSS`: the sum of the values `backward` was called on, or None.
    """

    SOURCE = 0
    END_NS = 1
    DATA_NS = 2
    FORWARD_NS = 3
    BACKWARD_NS = 4
    OPTIMIZER_NS = 5
    MICROBATCHES = 6
    INPUT_SAMPLES = 7
    TOKENS = 8
    SAMPLES = 9
    LOSS = 10
    DEVICE_NS = 11
    COPY_NS = 12
    INPUT_CALLS = 13
    WIDTH = 14


@record
class EpochEvent:
    """A loader's iterator was opened or ran out. `batches` is None at the opening."""

    kind: ClassVar[str] = "epoch"
    loader: int
    phase: str
    """"begin" or "end"."""
    clock_ns: int
    batches: int | None
    training_batches: int | None
    """Those of `batches` that a backward pass followed before the loader's next batch."""


RUNTIME_ONLY = "runtime_only"
"""The outcome of a knob that is applied with help of gpurun which a patch does not hold."""


@record
class KnobEvent:
    """The outcome of a setting; `detail` gives the reason.

    `outcome`: "applied", "skipped", "failed", "revoked" (applied before, and no more), or
    `RUNTIME_ONLY`, beside "applied".
    """

    kind: ClassVar[str] = "knob"
    knob: str
    outcome: str
    detail: str


@record
class CompileEvent:
    """torch began, or ended, to compile a part of a model that a knob had compiled."""

    kind: ClassVar[str] = "compile"
    phase: str
    """"begin" or "end"."""
    clock_ns: int


@record
class HookEvent:
    """A hook of ours raised; it was switched off and the script went on."""

    kind: ClassVar[str] = "hook"
    hook: str
    error: str


@record
class TraitEvent:
    """Something the script does by itself that knobs must respect; `detail` says where.

    `trait`: one of those above, "autocast", "compile", "grad_scaler", "data_parallel",
    "cuda_batches", "scheduler_total_steps", "synchronize", "no_guard", "no_root",
    "manual_attention"; "hidden_ddp": this rank exchanges the gradients of the module in `detail`.
    """

    kind: ClassVar[str] = "trait"
    trait: str
    detail: str


@record
class ValueRead:
    """A line of the script's own that hands values of tensors to the host.

    `where`: "train.py:57"; `call`: ".item()", "float()", "printing", ...; `device`: the type of the
    tensors' device, "cpu" where there is nothing to wait for. `steps`: in how many steps; `calls`:
    in all of them together.
    """

    where: str
    call: str
    device: str
    steps: int
    calls: int


@record
class WaitsEvent:
    """Reads that wait for the device, in `steps` early steps of a trial of the script as it is."""

    kind: ClassVar[str] = "waits"
    steps: int
    reads: tuple[ValueRead, ...]


BUFFERS = "buffers of "
"""Names of buffers in `side_update_norms` begin so; those of copies end in a number."""


@record
class AuditEvent:
    """One audited step of a trial: what the loss guard compares between trials.

    `step` counts from 1. `hyperparameters`: one object an optimizer group. Norms are L2 norms;
    `gradient_norms` (None: no gradient) and `update_norms` (the change in this step, from a part of
    the numbers of a large tensor) are by name of the optimized parameter.
    """

    kind: ClassVar[str] = "audit"
    step: int
    loss: float | None
    hyperparameters: tuple[dict[str, Any], ...]
    gradient_norms: dict[str, float | None]
    update_norms: dict[str, float]
    side_update_norms: dict[str, float]
    """Change of what is not optimized: the roots' buffers, and copies of the model (EMA)."""
    gradient_values: tuple[float, ...]
    """Some values of all gradients, in the first step; in all steps of trials of ranks."""
    input_values: tuple[float, ...]
    """Some values of the first tensor of the step's first root call."""
    draws: bool | None
    """True if torch drew random numbers between the last root call and the optimizer's step."""
    modules: dict[str, str]
    """Class and settings of each submodule of the roots, in the first and last audited step."""
    gradient_counts: tuple[int, ...] = ()
    """How many `gradient_values` each parameter has, by name in order; empty in old records."""
    updates_near_zero: tuple[str, ...] = ()
    """Parameters that moved by the least that their type can hold: rounding may swallow that."""


@record
class RatesEvent:
    """The learning rates of a whole trial: [first step, rates of all groups] at each change.

    None stands for a rate that is not a plain number of the host.
    """

    kind: ClassVar[str] = "rates"
    changes: tuple[tuple[int, tuple[float | None, ...]], ...]


@record
class SamplesEvent:
    """The samples of a training loader in one pass over it, written by trials.

    `order` lists the data-set indices of the whole pass. `checksums` maps str(index) to one
    checksum a leaf of the batch (image, label, ...), from audited steps only.
    """

    kind: ClassVar[str] = "samples"
    loader: int
    epoch: int
    order: tuple[int, ...]
    checksums: dict[str, tuple[int, ...]]
    again: tuple[tuple[int, ...], ...] = ()
    """Of each further pass over the audited samples: a checksum of the indices, then one a sample.
    Empty where they were not loaded again."""
    again_rates: tuple[float, ...] = ()
    """Samples a second of each of these passes."""
    drawn: bool = False
    """True if samples of audited batches, which were seeded by their index, drew random numbers."""
    seeded_batches: int = 0
    """Batches that were seeded in the process of the script: later ones draw from its stream."""


@record
class CoresEvent:
    """The time that others had the cores while a trial was measured, from `begin_ns` to `end_ns`.

    `waited_ns`: a thread of the training was ready and had no core. `ran_ns`: it had one.
    `stolen_ns`: other virtual machines had cores that it may use, of all of them together. None
    where the system does not count.
    """

    kind: ClassVar[str] = "cores"
    begin_ns: int
    end_ns: int
    waited_ns: int | None
    stolen_ns: int | None
    ran_ns: int | None = None
