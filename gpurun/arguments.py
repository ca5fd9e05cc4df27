"""From argv to `Options`, by one table of flags.

Not argparse: it would swallow the script's own `--`, and parsing must stop at the script.
torchrun's flags are only recognised here, so that the script can be found; torch's own parser
reads them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpurun.ddp_options import ddp_options
from gpurun.errors import GpurunError
from gpurun.options import DoctorOptions, Objective, Options, ScaleOptions, Target, TargetKind
from gpurun.records.record import record
from gpurun.records.spec import LossReduction
from gpurun.records.tuned_argument import MARK, TunedArgument

EFFECTS = ("pipeline", "numerics", "training")

OWN_SWITCHES = (
    "optimize", "tune-only", "dry-run", "tuned", "trials-in-place", "quiet", "strong",
    "oversubscribe", "ddp", "shared-writes",
)  # fmt: skip
OWN_VALUES = (
    "budget", "max-trials", "objective", "allow", "settings", "save-settings", "json", "out",
    "scale", "rounds", "steps", "plot", "ddp-options",
    "loss-reduction",
)  # fmt: skip
OF_OPTIMIZE = ("max-trials", "objective", "save-settings", "dry-run")
"""Flags that say nothing where nothing is tuned."""
OF_SCALE = ("strong", "oversubscribe", "rounds", "steps", "plot")
"""Flags that say nothing without `--scale`."""
AGAINST_SCALE = ("ddp", "optimize", "tune-only", "tuned", "settings", "allow")
"""Flags about settings, which `--scale` does not turn; and what it does by itself."""
OF_TRIALS = ("budget", "trials-in-place")
"""Flags that say nothing where there are no trials, of either kind."""

TORCHRUN_SWITCHES = ("standalone", "run-path", "virtual-local-rank")
TORCHRUN_VALUES = (
    "nnodes",
    "nproc-per-node",
    "rdzv-backend",
    "rdzv-endpoint",
    "rdzv-id",
    "rdzv-conf",
    "max-restarts",
    "monitor-interval",
    "start-method",
    "event-log-handler",
    "role",
    "log-dir",
    "redirects",
    "tee",
    "local-ranks-filter",
    "duplicate-stdout-filters",
    "duplicate-stderr-filters",
    "node-rank",
    "master-addr",
    "master-port",
    "local-addr",
    "logs-specs",
    "numa-binding",
    "signals-to-handle",
    "shutdown-timeout",
)
SHORT = {"-m": "module", "-r": "redirects", "-t": "tee", "-h": "help"}


@record
class Flags:
    """The flags that a command knows: those that stand alone, those that take a value, and those
    that take two (kept as one text, a line each)."""

    switches: tuple[str, ...]
    values: tuple[str, ...]
    pairs: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All of them."""
        return (*self.switches, *self.values, *self.pairs)


MAIN = Flags(
    (*OWN_SWITCHES, *TORCHRUN_SWITCHES, "module", "no-python", "help", "version"),
    (*OWN_VALUES, *TORCHRUN_VALUES),
)


@dataclass
class Words:
    """The command line taken apart: our flags, torchrun's, the program and its arguments.

    `each`: every value of a flag of ours that may be repeated; in `own` the last one counts.
    """

    own: dict[str, str] = field(default_factory=dict)
    each: dict[str, list[str]] = field(default_factory=dict)
    torchrun: list[str] = field(default_factory=list)
    program: str | None = None
    args: tuple[str, ...] = ()


def parse(argv: Iterable[str], environment: Mapping[str, str] | None = None) -> Options:
    """The options of the main form; `GpurunError` where a flag is unknown or has no good value."""
    environment = os.environ if environment is None else environment
    words = split(list(argv))
    if words.program is None:
        _scale(words.own)  # whose counts may be what was left out
        raise GpurunError("no script was named", "try: gpurun train.py, or gpurun --help")
    own = words.own
    if "settings" in own and "tuned" in own:
        raise GpurunError("--settings and --tuned exclude each other", "drop one of them")
    args, tuned = _tuned(words.args)
    options = Options(
        target=Target(_kind(own, environment), words.program, args),
        tuned_arguments=tuned,
        torchrun=tuple(words.torchrun),
        elastic=bool(words.torchrun) or asks_for_ranks(environment) or "ddp" in own,
        ddp="ddp" in own,
        oversubscribe="oversubscribe" in own,
        shared_writes="shared-writes" in own,
        ddp_options=ddp_options(own.get("ddp-options")),
        loss_reduction=_reduction(own.get("loss-reduction")),
        optimize="optimize" in own or "tune-only" in own,
        tune_only="tune-only" in own or "dry-run" in own,
        dry_run="dry-run" in own,
        budget_seconds=budget_of(own.get("budget")),
        max_trials=count_of("max-trials", own.get("max-trials")),
        objective=_objective(own.get("objective")),
        allow=allow_of(own.get("allow")),
        tuned="tuned" in own,
        settings=own.get("settings"),
        save_settings=own.get("save-settings"),
        trials_in_place="trials-in-place" in own,
        json=own.get("json"),
        out=own.get("out"),
        quiet="quiet" in own,
        scale=_scale(own),
    )
    _refuse_idle(options, own)
    if tuned and not (options.optimize or options.tuned):
        raise GpurunError(
            f"{tuned[0].name}: {tuned[0].word} needs --optimize",
            f"add --optimize, or write one value such as {tuned[0].values[0]}",
        )
    return options


def _refuse_idle(options: Options, own: Mapping[str, str]) -> None:
    """`GpurunError` for a flag that says nothing beside the others, or speaks against one."""
    if "shared-writes" in own and not options.ddp:
        raise GpurunError("--shared-writes needs --ddp", "add it, or drop the flag")
    if "loss-reduction" in own and not options.ddp:
        raise GpurunError("--loss-reduction needs --ddp", "add it, or drop the flag")
    if "ddp-options" in own and not options.ddp and options.scale is None:
        raise GpurunError("--ddp-options needs --ddp or --scale", "add one, or drop the flag")
    if options.ddp and options.target.kind is TargetKind.COMMAND:
        raise GpurunError("--ddp needs a Python script", "drop --no-python")
    idle = [name for name in OF_OPTIMIZE if name in own]
    if idle and not options.optimize:
        raise GpurunError(f"--{idle[0]} needs --optimize", "add --optimize, or drop it")
    idle = [name for name in OF_TRIALS if name in own]
    if idle and not options.optimize and options.scale is None:
        raise GpurunError(f"--{idle[0]} needs --optimize", "add --optimize or --scale, or drop it")
    idle = [name for name in OF_SCALE if name in own]
    if options.ddp and idle == ["oversubscribe"]:
        idle = []
    if idle and options.scale is None:
        raise GpurunError(f"--{idle[0]} needs --scale", "add it, as in --scale 1,2,4")
    against = [name for name in AGAINST_SCALE if name in own]
    if against and options.scale is not None:
        raise GpurunError(f"--{against[0]} is not for --scale", "drop one of them")


def split(argv: list[str], flags: Flags = MAIN) -> Words:
    """Sort the words up to the program; everything after it is the program's own."""
    words = Words()
    position = 0
    while position < len(argv):
        word = argv[position]
        position += 1
        if word == "--" or word == "-" or not word.startswith("-"):
            if word == "--":
                position += 1
            words.program = argv[position - 1] if position <= len(argv) else None
            words.args = tuple(argv[position:])
            return words
        name, value = _flag(word, flags)
        if name in flags.switches:
            if value is not None:
                raise GpurunError(f"--{name} takes no value", f"write --{name} alone")
        else:
            wanted = 2 if name in flags.pairs else 1
            values = [] if value is None else [value]
            following = argv[position : position + wanted - len(values)]
            position += len(following)
            values += following
            if len(values) < wanted:
                raise GpurunError(
                    f"--{name} needs {'two values' if wanted == 2 else 'a value'}",
                    f"write --{name} {' '.join(['VALUE'] * wanted)}",
                )
            value = "\n".join(values)
        _keep(words, name, value)
    return words


def with_configuration(options: Options, cwd: Path) -> Options:
    """The options with what `gpurun.toml` says where no flag did."""
    if not options.optimize and not _is_configured(cwd):
        return options
    from gpurun.config import load_config

    config = load_config(cwd)
    tuning = config.optimize
    return replace(
        options,
        budget_seconds=options.budget_seconds or (tuning.budget if options.optimize else None),
        max_trials=options.max_trials or tuning.max_trials,
        objective=options.objective or tuning.objective,
        patience_seconds=tuning.patience,
        allow=options.allow or tuple(effect.value for effect in tuning.allow),
        out=options.out or config.run.out,
        loss_reduction=options.loss_reduction
        or (config.run.loss_reduction if options.ddp else None),
        quiet=options.quiet or config.run.quiet,
        knob_paths=config.knobs,
    )


def _is_configured(cwd: Path) -> bool:
    """Whether reading the configuration is worth its imports."""
    for folder in (cwd, *cwd.parents):
        if (folder / "gpurun.toml").is_file():
            return True
        try:
            if b"gpurun" in (folder / "pyproject.toml").read_bytes():
                return True
        except OSError:
            continue
    return False


def parse_doctor(argv: list[str]) -> DoctorOptions:
    """The options of `gpurun doctor`."""
    words = split(argv)
    stray = [name for name in words.own if name not in ("json", "out", "quiet", "help")]
    if words.program is not None or words.torchrun or stray:
        raise GpurunError(
            "doctor takes --json, --out and --quiet only", "gpurun ./doctor runs a script"
        )
    own = words.own
    return DoctorOptions(
        json=own.get("json"), out=own.get("out"), quiet="quiet" in own, help="help" in own
    )


def asks_for_ranks(environment: Mapping[str, str]) -> bool:
    """Whether a `PET_*` variable sets one of torchrun's flags."""

    def variable(name: str) -> str:
        return environment.get("PET_" + name.upper().replace("-", "_"), "")

    return any(variable(n) for n in TORCHRUN_VALUES) or any(
        variable(n) not in ("", "0") for n in TORCHRUN_SWITCHES
    )


def nodes_asked_for(options: Options, environment: Mapping[str, str]) -> str | None:
    """The word that asks for more nodes than one; None where nothing does. The flag wins."""
    flags = [word for word in options.torchrun if word.startswith("--nnodes=")]
    variable = environment.get("PET_NNODES")
    asked = [f"PET_NNODES={variable}"] if variable else []
    word = [*asked, *flags][-1:]
    return next((w for w in word if w.partition("=")[2] not in ("1", "1:1")), None)


def _keep(words: Words, name: str, value: str | None) -> None:
    if name in TORCHRUN_SWITCHES:
        words.torchrun.append(f"--{name}")
    elif name in TORCHRUN_VALUES:
        words.torchrun.append(f"--{name}={value}")
    else:
        words.own[name] = value or ""
        words.each.setdefault(name, []).append(value or "")


def _flag(word: str, flags: Flags) -> tuple[str, str | None]:
    """The full name and the value glued to it, if any, of a word such as `--nproc_per_node=2`."""
    if not word.startswith("--"):
        name = SHORT.get(word[:2])
        if name is None or name not in flags.names or (name in flags.switches and len(word) > 2):
            raise unknown_flag(word, flags=flags)
        return name, word[2:].removeprefix("=") or None
    text, equals, value = word[2:].partition("=")
    text = text.replace("_", "-")
    names = flags.names
    matches = [text] if text in names else [f for f in names if f.startswith(text)]
    if len(matches) != 1:
        raise unknown_flag(word, matches, flags)
    return matches[0], value if equals else None


def unknown_flag(word: str, matches: list[str] | None = None, flags: Flags = MAIN) -> GpurunError:
    """The error for a flag that nobody knows, with the nearest one."""
    if matches:
        return GpurunError(
            f"{word} is ambiguous", "write one of " + ", ".join(f"--{m}" for m in matches)
        )
    from difflib import get_close_matches

    near = get_close_matches(word.lstrip("-").replace("_", "-"), flags.names, 1)
    todo = f"did you mean --{near[0]}?" if near else "see gpurun --help"
    return GpurunError(f"unknown flag {word}", f"{todo} (the script's own flags go after it)")


def _kind(own: dict[str, str], environment: Mapping[str, str]) -> TargetKind:
    module = "module" in own or environment.get("PET_MODULE", "0") not in ("", "0")
    command = "no-python" in own or environment.get("PET_NO_PYTHON", "0") not in ("", "0")
    if module and command:
        raise GpurunError("--module and --no-python exclude each other", "drop one of them")
    if command:
        return TargetKind.COMMAND
    return TargetKind.MODULE if module else TargetKind.SCRIPT


def _tuned(args: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[TunedArgument, ...]]:
    """The script's arguments as they are, and those of them that are tuned."""
    if not any(MARK in word for word in args):
        return args, ()
    from gpurun.tuned_arguments import as_it_is, tuned_arguments

    tuned = tuned_arguments(args, EFFECTS)
    return as_it_is(args, tuned), tuned


def budget_of(text: str | None) -> float | None:
    """The seconds of `--budget`."""
    if text is None:
        return None
    from gpurun.config_tables import parse_duration

    try:
        return parse_duration(text)
    except GpurunError as error:
        raise GpurunError(f"--budget: {error.what}", error.todo) from None


def count_of(flag: str, text: str | None) -> int | None:
    """The number from 1 on that a flag was given."""
    if text is None:
        return None
    if not text.isdigit() or int(text) == 0:
        raise GpurunError(f"--{flag} {text!r} is not a count", "write a number from 1")
    return int(text)


def _scale(own: Mapping[str, str]) -> ScaleOptions | None:
    if "scale" not in own:
        return None
    from gpurun.scaling.arguments import scale_options

    return scale_options(own)


def _objective(text: str | None) -> Objective | None:
    try:
        return None if text is None else Objective(text)
    except ValueError:
        choices = " or ".join(objective.value for objective in Objective)
        raise GpurunError(f"--objective {text!r} is no objective", f"write {choices}") from None


def _reduction(text: str | None) -> LossReduction | None:
    try:
        return None if text is None else LossReduction(text)
    except ValueError:
        choices = " or ".join(reduction.value for reduction in LossReduction)
        raise GpurunError(
            f"--loss-reduction {text!r} is no reduction", f"write {choices}"
        ) from None


def allow_of(text: str | None) -> tuple[str, ...] | None:
    """The effects of `--allow`."""
    if text is None:
        return None
    chosen = tuple(word.strip() for word in text.split(",") if word.strip())
    wrong = [word for word in chosen if word not in EFFECTS]
    if wrong or not chosen:
        raise GpurunError(
            f"--allow {text!r} is not a list of effects", f"choose among {','.join(EFFECTS)}"
        )
    return chosen
