"""Options: the command line as records, one for each command."""

from __future__ import annotations

import enum
from dataclasses import replace
from datetime import datetime

from gpurun.records.effects import DEFAULT_ALLOW
from gpurun.records.record import record
from gpurun.records.script_arguments import TunedArgument, masked
from gpurun.records.spec import LossReduction, ProfileSpec, SafetySpec, Setting


class TargetKind(enum.Enum):
    """The kind of the user's program."""

    SCRIPT = "script"
    MODULE = "module"
    COMMAND = "command"


class Objective(enum.Enum):
    """The aim of a tuning: more samples a second, the least energy a sample, or the least peak
    memory. `cost` is throughput: an hour of the same machine costs the same.
    """

    THROUGHPUT = "throughput"
    ENERGY = "energy"
    MEMORY = "memory"

    @classmethod
    def _missing_(cls, value: object) -> Objective | None:
        return cls.THROUGHPUT if value == "cost" else None


@record
class Target:
    """The user's program (with `--no-python` any command) and its arguments."""

    kind: TargetKind
    path: str
    args: tuple[str, ...] = ()

    @property
    def shown(self) -> tuple[str, ...]:
        """The program and its arguments as records and people see them: without secrets."""
        return masked((self.path, *self.args))


@record
class ScaleOptions:
    """The options of `--scale`. `counts`: numbers of devices, rising. `steps`: steps to measure in
    a launch, None for as many as needed. `rounds`: launches of each count, None for the default."""

    counts: tuple[int, ...]
    strong: bool = False
    rounds: int | None = None
    steps: int | None = None
    plot: str | None = None
    oversubscribe: bool = False


@record
class Options:
    """The main form's flags. `torchrun` holds torchrun's own flags as typed (without `-m` and
    `--no-python`). `elastic`: the user asked for ranks, by flags or by `PET_*` variables; exactly
    then `torchrun` is not empty. `ddp`: ranks hide their number from the script. `oversubscribe`
    allows more of them than devices, `shared_writes` lets them write the same files, `ddp_options`
    sets their exchange of gradients, and `loss_reduction` the reduction of the loss. None stands
    for an option that nobody set; `budget_seconds` and `allow` are always set under `optimize`.
    `target` is the script as it is; `tuned_arguments` are those of its arguments that were typed as
    `@tune:` words. `without`: knobs to leave out of the stored settings. `profile`: the window of
    steps that `gpurun profile` records. `verbose`: a line for each trial and decision of a tuning.
    `profile_every`: steps from one light profile of a training to the next. `live`: a line below
    the script's output shows the run. `prometheus`: host and port of its metrics. `tensorboard`:
    the folder of its TensorBoard events. `safety`: what a full run does when it goes wrong.
    `grace_seconds`: from a signal that asks to end until SIGKILL. `requeue`: put SLURM's job back
    after a warning."""

    target: Target
    torchrun: tuple[str, ...] = ()
    elastic: bool = False
    ddp: bool = False
    oversubscribe: bool = False
    shared_writes: bool = False
    ddp_options: tuple[Setting, ...] = ()
    loss_reduction: LossReduction | None = None
    optimize: bool = False
    tune_only: bool = False
    dry_run: bool = False
    budget_seconds: float | None = None
    max_trials: int | None = None
    objective: Objective | None = None
    patience_seconds: float | None = None
    allow: tuple[str, ...] | None = None
    tuned: bool = False
    settings: str | None = None
    without: tuple[str, ...] = ()
    save_settings: str | None = None
    trials_in_place: bool = False
    json: str | None = None
    out: str | None = None
    quiet: bool = False
    verbose: bool = False
    requeue: bool = False
    grace_seconds: float | None = None
    knob_paths: tuple[str, ...] = ()
    tuned_arguments: tuple[TunedArgument, ...] = ()
    scale: ScaleOptions | None = None
    profile: ProfileSpec | None = None
    profile_every: int | None = None
    live: bool = False
    prometheus: tuple[str, int] | None = None
    tensorboard: str | None = None
    safety: SafetySpec = SafetySpec()

    @property
    def aim(self) -> Objective:
        """The objective; throughput by default."""
        return self.objective or Objective.THROUGHPUT

    @property
    def allowed(self) -> tuple[str, ...]:
        """The effects that may be applied; the default ones where nobody said others."""
        return self.allow or tuple(effect.value for effect in DEFAULT_ALLOW)

    @property
    def typed(self) -> Target:
        """The target with its `@tune:` words: what a tuning is known by, and found again."""
        words = list(self.target.args)
        for argument in self.tuned_arguments:
            words[argument.position] = argument.word
        return replace(self.target, args=tuple(words))


@record
class ProfileOptions:
    """The flags of `gpurun profile`. `run`: the plain run that is profiled.

    `sources`: names of profilers, None for those that are on by default. `steps`: to record, None
    for the default. `stop`: the script ends after them.
    """

    run: Options
    sources: tuple[str, ...] | None = None
    steps: int | None = None
    stop: bool = False


@record
class BlameOptions:
    """The flags of `gpurun blame`. `run`: the run that went wrong. `steps`: of
    each launch. `check`: the shell command that judges a launch, None for a crash or a bad loss."""

    run: Options
    steps: int = 0
    check: str | None = None


@record
class EjectOptions:
    """The flags of `gpurun eject`. `run`: the tuned run. `output`: the file of the diff, None for
    stdout. `check`: run the patched script. `budget_seconds`: of the check, None for the
    default."""

    run: Options
    output: str | None = None
    check: bool = True
    budget_seconds: float | None = None


@record
class DoctorOptions:
    """The flags of `gpurun doctor`. `gpu`: put the GPUs to work too."""

    gpu: bool = False
    json: str | None = None
    out: str | None = None
    quiet: bool = False


@record
class DiagnoseOptions:
    """The flags of `gpurun diagnose`. `paths`: a run folder, recordings of one training, or
    two of these that are compared."""

    paths: tuple[str, ...] = ()
    json: str | None = None
    markdown: str | None = None
    all: bool = False
    quiet: bool = False


@record
class ReportOptions:
    """The flags of `gpurun report`. `runs`: run folders, their names, or documents of `--json`; the
    newest run if there are none. `html`: None for a file in the folder of the first run."""

    runs: tuple[str, ...] = ()
    html: str | None = None
    markdown: str | None = None
    png: str | None = None
    out: str | None = None
    quiet: bool = False


@record
class MonitorOptions:
    """The flags of `gpurun monitor`. `once`: a single look, which `json` implies. `prometheus`:
    host and port of the metrics."""

    once: bool = False
    json: str | None = None
    prometheus: tuple[str, int] | None = None
    out: str | None = None
    quiet: bool = False


@record
class BenchOptions:
    """The flags of `gpurun bench`; None where nobody said anything.

    `script` and `args`: the benchmark, None for those of the configuration. `compare`: the REF to
    compare with. `metrics`: (name, threshold or
    None) of each that is gated. `threshold`: the fraction by which throughput and step time may get
    worse. `exports`: (tracker, file) of each document for a tracker of other make. `store`: the URL
    of the database. `from_history`: the records of REF's branch are the baseline, nothing of it is
    launched. `ab`: the settings files to compare; `allow`: the effects that these may have.
    `fail_on_training_change`: other loss curves are exit code 6, not a warning. `results`: the file
    of stored results to judge. `baseline`: the file of records to compare them with, None for the
    store. `commit_sha`: the commit that has to be checked out. `branch`: the one that the record
    names.
    """

    script: str | None = None
    args: tuple[str, ...] = ()
    compare: str | None = None
    from_history: bool = False
    fail_on_training_change: bool = False
    results: str | None = None
    baseline: str | None = None
    commit_sha: str | None = None
    branch: str | None = None
    ab: tuple[str, str] | None = None
    allow: tuple[str, ...] | None = None
    threshold: float | None = None
    max_pairs: int | None = None
    launches: int | None = None
    steps: int | None = None
    budget_seconds: float | None = None
    metrics: tuple[tuple[str, float | None], ...] | None = None
    trials_in_place: bool = False
    json: str | None = None
    markdown: str | None = None
    exports: tuple[tuple[str, str], ...] = ()
    store: str | None = None
    out: str | None = None
    quiet: bool = False


@record
class HistoryOptions:
    """The flags of `gpurun bench history`. `name`: the benchmark, None for all that have records.

    `since` counts, `until` does not. `branch`: None for the one that is checked out.
    """

    name: str | None = None
    metric: str = "throughput"
    since: datetime | None = None
    until: datetime | None = None
    branch: str | None = None
    json: str | None = None
    png: str | None = None
    store: str | None = None
    out: str | None = None
    quiet: bool = False


@record
class AcceptOptions:
    """The flags of `gpurun bench accept`.

    `name`: the benchmark, None for all that have a record of HEAD. `record`: the id of one record.
    """

    name: str | None = None
    record: str | None = None
    reason: str = ""
    json: str | None = None
    store: str | None = None
    out: str | None = None
    quiet: bool = False


@record
class BisectOptions:
    """The flags of `gpurun bench bisect`; None where nobody said anything.

    `good` and `bad` name the ends of the range. `script` and `args`: the benchmark, None for those
    of the configuration. `fresh`: an earlier search of the range is forgotten.
    """

    good: str
    bad: str
    script: str | None = None
    args: tuple[str, ...] = ()
    max_pairs: int | None = None
    steps: int | None = None
    budget_seconds: float | None = None
    fresh: bool = False
    trials_in_place: bool = False
    json: str | None = None
    markdown: str | None = None
    store: str | None = None
    out: str | None = None
    quiet: bool = False
