"""The spec that the launcher gives the user's process: one JSON file, named by one environment
variable."""

from __future__ import annotations

import enum
from typing import Any

from gpurun.records.record import record

SPEC_VARIABLE = "GPURUN_SPEC"
"""Environment variable that holds the path of the spec file."""

RUN_SPEC = "run_spec.json"
"""File of the control folder: the spec by which a prestarted process runs the script."""

FIRST_STEP, GO = "first_step", "go"
"""Files of the control folder: a process waits at its first step, and may go on."""

SPEC_SCHEMA = "gpurun/spec@1"

SEED = 1234
"""Launches that are compared with each other all begin with it."""

OUTPUT_CALLS = 20
"""A trial looks at the results of the first root calls without gradients, this many."""


@record
class Setting:
    """One knob turned to one value, for instance `Setting("loader_workers", 8)`."""

    knob: str
    value: Any


@record
class StopRule:
    """When a trial has seen enough.

    The first `audit_steps` steps are audited for the guard, because the parameters of all trials
    are still alike there (at least `OUTPUT_CALLS` of a script that only infers). Then
    `warmup_steps` steps are left out, then the measured window begins. It ends at the first step of
    the clock at which `min_steps` steps in all are done and the window is `min_seconds` long, or at
    `max_steps` steps. Then the process exits at once.
    """

    min_steps: int
    min_seconds: float
    max_steps: int
    warmup_steps: int
    audit_steps: int


@record
class WorkerTurnPlan:
    """The numbers of loader workers that one launch measures in turns, fewest first.

    `threads`: of an operator, for each number; None leaves them. `seconds`: all turns end by then.
    `epoch_steps`: a turn has whole epochs of so many steps; 0: it has no start of an epoch.
    """

    workers: tuple[int, ...]
    threads: tuple[int | None, ...]
    seconds: float
    epoch_steps: int = 0


@record
class TrialSpec:
    """The differences between a short trial and a run.

    `seed` seeds every generator at start; `seed_offset` is added to the seeds that the script sets
    itself, so that repeats can differ although the script seeds. With `hold_at_first_step` the
    process writes `control/first_step` in the run folder and waits for `control/go`, so that the
    launcher can keep what the script wrote until then. `planted_seconds` are added to each step, a
    slow-down on purpose. With `rounded` parameters are rounded to bfloat16 once, before they train,
    and in each step what layers return; `rounding_draw` numbers draws that round parameters up or
    down by chance, 0 is to the nearest. With `still` dropout is off: only its audited steps count.
    With `load_again` the samples of audited steps are loaded again at their end.
    With `ceilings` it measures the script, then the script on one batch again and again, then the
    loader alone. With `worker_turns` it measures several numbers of loader workers. With
    `source_sites` it records where the script builds and calls what settings change. With
    `by_sample` the model computes each sample by itself, so that ranks can be compared with one
    process; with `shares`, one process takes the samples of each batch share by share of so many
    ranks, which only rounds.
    """

    stop: StopRule
    seed: int = 0
    seed_offset: int = 0
    hold_at_first_step: bool = False
    planted_seconds: float = 0.0
    rounded: bool = False
    rounding_draw: int = 0
    still: bool = False
    load_again: bool = False
    ceilings: bool = False
    worker_turns: WorkerTurnPlan | None = None
    source_sites: bool = False
    by_sample: bool = False
    shares: int = 0


@record
class Trees:
    """The trees of a comparison, by their top folders, links resolved: the tree of the launched
    side, and the trees from which it must load nothing. One may lie inside another."""

    own: str
    others: tuple[str, ...]


class Share(enum.Enum):
    """The share of the script's batches that each of N ranks takes. `GLOBAL`: an N-th of every
    batch, so the global batch is the script's. `LOCAL`: every N-th batch, whole."""

    GLOBAL = "global"
    LOCAL = "local"


class LossReduction(enum.Enum):
    """The reduction from the losses of samples to the loss of a batch."""

    MEAN = "mean"
    SUM = "sum"


@record
class Parallel:
    """Hidden data parallelism: a script written for one device, run on every rank.

    `seed` seeds what must agree among ranks where the script seeds nothing itself. `shared_gpus`:
    so many GPUs of this host its ranks share, more ranks than GPUs; 0 where each has its own.
    `reduction`: the loss reduction that trials have verified or the user set. None for a script
    that is distributed by itself.
    """

    share: Share
    seed: int = 0
    shared_gpus: int = 0
    reduction: LossReduction | None = LossReduction.MEAN


OPERATOR_STEPS = 2
"""Steps behind the window in which operators and allocations are recorded on a GPU."""


@record
class ProfileSpec:
    """A window of steady steps is profiled.

    `sources`: of "kineto", "host", "allocator", "operators", "nsys", "ncu". The window begins after
    `warmup_steps` and once steps are alike. It has `steps` steps, and more, up to `max_steps`,
    until it is `min_seconds` long. `stop`: the script ends with it. `every`: a further window
    begins so many steps after each, until the script ends; None: there is one. Of Nsight Compute:
    `kernel`: a regular expression for the kernels to look at, None for the longest ones;
    `launch_count`: of each shape of them; `set`: of sections, beside those that findings need.
    """

    sources: tuple[str, ...]
    warmup_steps: int = 6
    steps: int = 20
    max_steps: int = 2000
    min_seconds: float = 1.0
    stop: bool = False
    every: int | None = None
    kernel: str | None = None
    launch_count: int = 2
    set: str | None = None


@record
class Exchange:
    """Options of the exchange of gradients, for hidden data parallelism and a script's own DDP.

    `left_out`: they work as they would and leave gradients unexchanged: what the exchange costs is
    the difference. `options`: by DistributedDataParallel's names
    (`Setting("gradient_as_bucket_view", True)`), over its defaults; what a script says itself
    stands.
    """

    left_out: bool = False
    options: tuple[Setting, ...] = ()


CHECKPOINT = "emergency.pt"
"""File of the run folder that `--emergency-checkpoint` writes."""
DRAFT = ".gpurun-draft-"
"""Beginning of the names of half-written files, which nobody else gives to a file."""
MEMORY_SNAPSHOT = "out-of-memory.pickle"
"""End of the name of the run folder's file with torch's snapshot of a GPU that had no room."""


class NonfiniteAction(enum.Enum):
    """The answer to a loss that is NaN or infinite. `SKIP` leaves out the optimizer's step, which
    changes the training."""

    WARN = "warn"
    SKIP = "skip"
    STOP = "stop"


@record
class SafetySpec:
    """Safety of a full run. `locate_nonfinite`: outputs and gradients are looked at, to say where a
    loss that is not finite came from. `emergency_checkpoint`: root modules and optimizers are saved
    when it dies. `quiet`: warnings are recorded and not printed."""

    on_nonfinite: NonfiniteAction = NonfiniteAction.WARN
    locate_nonfinite: bool = False
    emergency_checkpoint: bool = False
    quiet: bool = False


@record
class RunSpec:
    """One launch: where its records go, which settings apply, and whether it is a trial.

    `training_loaders` holds the keys (`file:line#ordinal`) of the loaders that feed the training
    steps, as an earlier run of the same script saw them. Empty means unknown: loader knobs then
    touch every loader with a map-style data set. `knob_paths` are files or folders with knobs of
    the user's own. `prestart_modules`: modules that a prestarted process imports at once. It then
    waits, before the script's first line, for `control/run_spec.json` in the run folder: the spec
    to run by. `trees`: each process records which files it loads from them. `parallel`: the script
    knows of one device, and this process is one rank of several. `exchange`: how it exchanges
    gradients with the others. `kernel_oom_kills`: processes that the kernel had killed for memory
    before, None where it does not say.
    `launcher_started`: clock ticks from the boot to the launcher's start: a later process may get
    its number.
    `turns_after_steps`: after so many steps it trains in turns with the other side of a live pair;
    None: it trains alone. `profile`: it profiles some of its steps. `safety`: what a
    full run does when it goes wrong. `rehearse`: no trial has compared its settings: loaders are
    rehearsed before they get workers.
    """

    run_dir: str
    launcher_pid: int
    settings: tuple[Setting, ...] = ()
    training_loaders: tuple[str, ...] = ()
    knob_paths: tuple[str, ...] = ()
    trial: TrialSpec | None = None
    prestart_modules: tuple[str, ...] = ()
    trees: Trees | None = None
    parallel: Parallel | None = None
    exchange: Exchange = Exchange()
    kernel_oom_kills: int | None = None
    launcher_started: int | None = None
    turns_after_steps: int | None = None
    profile: ProfileSpec | None = None
    safety: SafetySpec | None = None
    rehearse: bool = False
    schema: str = SPEC_SCHEMA
