"""The flags of `gpurun [flags] train.py`, one field each, and the options that they make.

A new flag is a new field. Commands that launch the script share these flags.
"""

from __future__ import annotations

import enum
from dataclasses import replace

from gpurun.arguments.ddp_options import ddp_options_of, flag_of
from gpurun.arguments.flag_table import QUIET, flag
from gpurun.arguments.flag_values import (
    address_of,
    choice_of,
    device_counts_of,
    duration_of,
    effects_of,
    names_of,
    nonfinite_action_of,
    oom_action_of,
)
from gpurun.records.effects import DEFAULT_ALLOW, Effect
from gpurun.records.record import record
from gpurun.records.script_arguments import TunedArgument, masked
from gpurun.records.spec import (
    LossReduction,
    NonfiniteAction,
    ProfileSpec,
    SafetySpec,
    Setting,
)


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


DEFAULT_EFFECTS = tuple(effect.value for effect in DEFAULT_ALLOW)
SAFETY_PAGE = "docs/LAUNCHING.md#safety-of-full-runs"
SCALING_PAGE = "docs/SCALING.md"
MONITORING_PAGE = "docs/MONITORING.md"
TUNING_PAGE = "docs/OPTIMIZATION_GUIDE.md"
OF_TUNING = ("profile", "blame", "eject")
"""Commands that refuse a flag of a tuning or a scaling: they try nothing."""
OF_TRIALS = ("blame", "eject")
"""Commands that refuse a flag of a full run: they launch short trials."""


@record
class Options:
    """The main form's flags, and what else a launch of the script is known by.

    `target` is the script as it is; `tuned_arguments` are those of its arguments that were typed as
    `@tune:` words. `torchrun` holds torchrun's own flags as typed (without `-m` and `--no-python`).
    `elastic`: the user asked for ranks, by flags or by `PET_*` variables; exactly then `torchrun`
    is not empty. None stands for an option that nobody set; `budget_seconds` and `allow` are always
    set under `optimize`. `knob_paths`: the user's own knobs. `profile`: the window of steps that
    `gpurun profile` records.
    """

    target: Target
    torchrun: tuple[str, ...] = ()
    elastic: bool = False
    knob_paths: tuple[str, ...] = ()
    tuned_arguments: tuple[TunedArgument, ...] = ()
    profile: ProfileSpec | None = None
    optimize: bool = flag(
        "try settings in short trials, prove the best, then train with them",
        against=("scale", *OF_TUNING),
        page=TUNING_PAGE,
    )
    tune_only: bool = flag(
        "the same without the training", against=("scale", *OF_TUNING), page=TUNING_PAGE
    )
    dry_run: bool = flag(
        "launch the script once and list the changes to try, their time and their memory",
        needs=("optimize",),
        against=OF_TUNING,
    )
    budget_seconds: float | None = flag(
        "how long tuning may take, training not included: 90s, 5m, 1h. A live pair that has begun "
        "may go on to its first result, for about a quarter of the budget and one minute at most. "
        "--scale has no limit without it",
        "TIME",
        name="budget",
        default="5m",
        read=duration_of,
        needs=("optimize", "scale"),
        against=OF_TUNING,
        key="optimize.budget",
    )
    max_trials: int | None = flag(
        "trials before the proof, including two of the script as it is",
        "N",
        default="20",
        needs=("optimize",),
        against=OF_TUNING,
        key="optimize.max_trials",
    )
    objective: Objective | None = flag(
        "the aim of tuning: throughput (and cost with it), energy: the fewest joules a sample, or "
        "memory: the least peak memory, whatever it costs in time",
        "GOAL",
        default="throughput",
        read=choice_of(Objective),
        needs=("optimize",),
        against=OF_TUNING,
        key="optimize.objective",
    )
    patience_seconds: float | None = flag(
        "when a silent trial is given up",
        "TIME",
        name="patience",
        read=duration_of,
        key="optimize.patience",
        typed=False,
    )
    allow: tuple[str, ...] | None = flag(
        "effects that may be applied, a list of pipeline,numerics,training",
        "EFFECTS",
        default=",".join(DEFAULT_EFFECTS),
        read=effects_of,
        against=("scale", "profile"),
        key="optimize.allow",
        kind=tuple[Effect, ...],
    )
    tuned: bool = flag(
        "apply settings that an earlier --optimize found here, without trials",
        against=("scale",),
        page="docs/OPTIMIZATION_GUIDE.md#after-the-tuning",
    )
    settings: str | None = flag("apply the settings of a file", "FILE", against=("scale",))
    without: tuple[str, ...] = flag(
        "leave these settings out, a list of names",
        "KNOBS",
        initial=(),
        read=names_of,
        needs=("tuned", "settings"),
    )
    save_settings: str | None = flag(
        "write the settings found to a file for --settings",
        "FILE",
        needs=("optimize",),
        against=OF_TUNING,
    )
    counts: tuple[int, ...] | None = flag(
        "measure the script on so many devices in turn: 1,2,4. Each keeps the script's batch",
        "COUNTS",
        name="scale",
        read=device_counts_of,
        against=OF_TUNING,
        page=SCALING_PAGE,
    )
    strong: bool = flag(
        "devices share the script's batch", needs=("scale",), against=OF_TUNING, page=SCALING_PAGE
    )
    rounds: int | None = flag(
        "launches of each count", "N", needs=("scale",), against=OF_TUNING, page=SCALING_PAGE
    )
    steps: int | None = flag(
        "steps to measure in a launch",
        "N",
        needs=("scale",),
        against=("eject",),
        page=SCALING_PAGE,
    )
    plot: str | None = flag(
        "draw the scaling there, as a PNG",
        "FILE",
        needs=("scale",),
        against=OF_TUNING,
        page=SCALING_PAGE,
    )
    trials_in_place: bool = flag(
        "do not isolate trials: they write to your files",
        needs=("optimize", "scale"),
        against=("profile",),
        page="docs/OPTIMIZATION_GUIDE.md#what-a-trial-can-change",
    )
    ddp: bool = flag(
        "run a script written for one device on --nproc-per-node N ranks: each takes a share of "
        "every batch, and the training stays the same",
        against=("scale",),
        page=SCALING_PAGE,
    )
    ddp_options: tuple[Setting, ...] = flag(
        "how ranks exchange gradients, a list of static_graph, gradient_as_bucket_view, "
        "bucket_cap_mb=N and compression=bf16",
        "LIST",
        initial=(),
        read=ddp_options_of,
        needs=("ddp", "scale"),
        page=SCALING_PAGE,
    )
    loss_reduction: LossReduction | None = flag(
        "the loss is the mean or the sum of its samples' losses; without it gpurun measures this "
        "before training",
        "HOW",
        read=choice_of(LossReduction),
        needs=("ddp",),
        key="run.loss_reduction",
        page=SCALING_PAGE,
    )
    shared_writes: bool = flag(
        "let ranks write the same files if they cannot have private layers",
        needs=("ddp",),
        page=SCALING_PAGE,
    )
    oversubscribe: bool = flag(
        "allow more ranks than devices", needs=("ddp", "scale"), page=SCALING_PAGE
    )
    live: bool = flag(
        "keep a line below the script's output: steps, throughput, loss, GPUs",
        against=("tune-only", "scale", *OF_TRIALS),
        page=MONITORING_PAGE,
    )
    prometheus: tuple[str, int] | None = flag(
        "serve figures of the run and its GPUs to Prometheus, on loopback; ADDRESS:PORT serves "
        "other machines too",
        "PORT",
        read=address_of,
        against=("tune-only", "scale", *OF_TRIALS),
        page=MONITORING_PAGE,
    )
    tensorboard: str | None = flag(
        "write loss, learning rate, throughput and GPU figures as TensorBoard events",
        "DIR",
        against=("tune-only", "scale", *OF_TRIALS),
        page=MONITORING_PAGE,
    )
    profile_every: int | None = flag(
        "every N steps sample what the training's thread does for a second; gpurun diagnose RUN "
        "shows the last sample",
        "N",
        against=("tune-only", "scale", *OF_TUNING),
        page="docs/PROFILING_GUIDE.md#a-long-training",
    )
    on_nonfinite: NonfiniteAction = flag(
        "when the loss is NaN or infinite: warn, stop the run, or skip the optimizer's step "
        "(changes the training, waits for each loss)",
        "WHAT",
        initial=NonfiniteAction.WARN,
        default="warn",
        read=nonfinite_action_of,
        against=("scale", *OF_TRIALS),
        page=SAFETY_PAGE,
    )
    locate_nonfinite: bool = flag(
        "name the module, input or gradient in which the first NaN or infinite value came up "
        "(looks at the output of every module: slower)",
        against=("scale", *OF_TRIALS),
        page=SAFETY_PAGE,
    )
    on_oom: str = flag(
        "when memory runs out, end with the script's own error",
        "WHAT",
        initial="stop",
        default="stop",
        read=oom_action_of,
        against=("scale", *OF_TRIALS),
        page=SAFETY_PAGE,
    )
    grace_seconds: float | None = flag(
        "kill a script or ranks that have not ended so long after a signal that asks to end; "
        "ranks: 30s, one process: as under python, never",
        "TIME",
        name="grace",
        read=duration_of,
        against=("tune-only", "scale", *OF_TRIALS),
        page=SAFETY_PAGE,
    )
    requeue: bool = flag(
        "in a job of SLURM: after a warning (SIGUSR1, SIGUSR2, SIGTERM) put the job back into the "
        "queue; there add the script's own --resume",
        against=("tune-only", "scale", *OF_TRIALS),
        page=SAFETY_PAGE,
    )
    emergency_checkpoint: bool = flag(
        "save root modules and optimizers into the run folder if the script dies by an exception, "
        "Ctrl-C or a SIGTERM that it does not handle itself",
        against=("scale", *OF_TRIALS),
        page=SAFETY_PAGE,
    )
    json: str | None = flag("write the result as JSON; the schemas are in gpurun/schemas/", "FILE")
    out: str | None = flag(
        "keep records there (also GPURUN_HOME)", "DIR", default=".gpurun", key="run.out"
    )
    quiet: bool = flag(QUIET, key="run.quiet")
    verbose: bool = flag(
        "a line for each trial and decision, and why a knob was not tried. Without it a terminal "
        "shows a table, and a log gets a line for each stage",
        needs=("optimize",),
        against=OF_TUNING,
    )

    @property
    def scale(self) -> ScaleOptions | None:
        """The options of `--scale`; None without it."""
        if self.counts is None:
            return None
        return ScaleOptions(
            self.counts, self.strong, self.rounds, self.steps, self.plot, self.oversubscribe
        )

    @property
    def safety(self) -> SafetySpec:
        """What a full run does when it goes wrong."""
        return SafetySpec(self.on_nonfinite, self.locate_nonfinite, self.emergency_checkpoint)

    @property
    def modes(self) -> dict[str, bool]:
        """Whether each mode is on that a flag may need, or be against."""
        return {
            "optimize": self.optimize,
            "tune-only": self.tune_only,
            "tuned": self.tuned,
            "settings": self.settings is not None,
            "ddp": self.ddp,
            "scale": self.counts is not None,
        }

    @property
    def aim(self) -> Objective:
        """The objective; throughput by default."""
        return self.objective or Objective.THROUGHPUT

    @property
    def allowed(self) -> tuple[str, ...]:
        """The effects that may be applied; the default ones where nobody said others."""
        return self.allow or DEFAULT_EFFECTS

    @property
    def rank_words(self) -> tuple[str, ...]:
        """The words that ask for ranks, ours before torchrun's."""
        words = ["--ddp"] if self.ddp else []
        if self.ddp_options:
            words += ["--ddp-options", flag_of(self.ddp_options)]
        return (*words, *self.torchrun)

    @property
    def typed(self) -> Target:
        """The target with its `@tune:` words: what a tuning is known by, and found again."""
        words = list(self.target.args)
        for argument in self.tuned_arguments:
            words[argument.position] = argument.word
        return replace(self.target, args=tuple(words))
