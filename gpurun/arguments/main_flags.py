"""The flags of `gpurun [flags] train.py`, and `Options` made of them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from gpurun.arguments.ddp_options import ddp_options
from gpurun.arguments.flag_parser import Flags, Words, filled, split
from gpurun.arguments.flag_values import (
    EFFECTS,
    address_of,
    allow_of,
    budget_of,
    choice_of,
    count_of,
    names_of,
)
from gpurun.arguments.options import Objective, Options, Target, TargetKind
from gpurun.arguments.safety_flags import safety_of
from gpurun.arguments.scale_flags import scale_options
from gpurun.arguments.torchrun_flags import TORCHRUN_SWITCHES, TORCHRUN_VALUES, asks_for_ranks
from gpurun.arguments.trusted_files import read_regular
from gpurun.errors import GpurunError
from gpurun.records.script_arguments import MARK, TunedArgument
from gpurun.records.spec import LossReduction, NonfiniteAction

OWN_SWITCHES = (
    "optimize", "tune-only", "dry-run", "tuned", "trials-in-place", "quiet", "strong",
    "oversubscribe", "ddp", "shared-writes", "emergency-checkpoint", "locate-nonfinite", "live",
    "verbose", "requeue",
)  # fmt: skip
OWN_VALUES = (
    "budget", "max-trials", "objective", "allow", "settings", "save-settings", "json", "out",
    "scale", "rounds", "steps", "plot", "ddp-options",
    "loss-reduction", "without", "prometheus", "tensorboard", "on-nonfinite", "on-oom",
    "profile-every", "grace",
)  # fmt: skip
NEEDS = {
    **dict.fromkeys(("max-trials", "objective", "save-settings", "dry-run"), ("optimize",)),
    "verbose": ("optimize",),
    **dict.fromkeys(("budget", "trials-in-place"), ("optimize", "scale")),
    **dict.fromkeys(("strong", "rounds", "steps", "plot"), ("scale",)),
    **dict.fromkeys(("shared-writes", "loss-reduction"), ("ddp",)),
    **dict.fromkeys(("oversubscribe", "ddp-options"), ("ddp", "scale")),
    "without": ("tuned", "settings"),
}
"""By flag, the modes of which it needs one."""
OF_TRAINING = ("live", "prometheus", "tensorboard", "profile-every", "grace", "requeue")
"""Flags of a training: what shows it while it runs, and how it ends."""
AGAINST_SCALE = (
    "ddp", "optimize", "tune-only", "tuned", "settings", "allow",
    "on-nonfinite", "locate-nonfinite", "emergency-checkpoint", "on-oom", *OF_TRAINING,
)  # fmt: skip
"""Flags that `--scale` excludes: it applies no settings, hides ranks by itself, only measures."""
MAIN = Flags(
    (*OWN_SWITCHES, *TORCHRUN_SWITCHES, "module", "no-python", "version"),
    (*OWN_VALUES, *TORCHRUN_VALUES),
)


def parse(argv: Iterable[str], environment: Mapping[str, str] | None = None) -> Options:
    """The options of the main form; `GpurunError` where a flag is unknown or has no good value."""
    words = split(list(argv), MAIN)
    return options_of(words, os.environ if environment is None else environment)


def options_of(words: Words, environment: Mapping[str, str]) -> Options:
    """The options that the words of a command line make; `GpurunError` as for `parse`."""
    if words.program is None:
        scale_options(words.own)  # whose counts may be what was left out
        raise GpurunError("no script was named", "try: gpurun train.py, or gpurun --help")
    own = words.own
    if "settings" in own and "tuned" in own:
        raise GpurunError("--settings and --tuned exclude each other", "drop one of them")
    args, tuned = _tuned(words.args)
    grace = budget_of(own.get("grace"), "grace")
    waiting = () if grace is None else (f"--shutdown-timeout={math.ceil(grace)}",)
    elastic = bool(words.torchrun) or asks_for_ranks(environment) or "ddp" in own
    options = filled(
        Options,
        own,
        target=Target(_kind(own, environment), words.program, args),
        tuned_arguments=tuned,
        torchrun=(*words.torchrun, *(waiting if elastic else ())),
        elastic=elastic,
        grace_seconds=grace,
        ddp_options=ddp_options(own.get("ddp-options")),
        loss_reduction=choice_of("loss-reduction", own.get("loss-reduction"), LossReduction),
        optimize="optimize" in own or "tune-only" in own,
        tune_only="tune-only" in own or "dry-run" in own,
        budget_seconds=budget_of(own.get("budget")),
        objective=choice_of("objective", own.get("objective"), Objective),
        allow=allow_of(own.get("allow")),
        without=names_of("without", own.get("without")),
        scale=scale_options(own),
        prometheus=address_of("prometheus", own.get("prometheus")),
        profile_every=count_of("profile-every", own.get("profile-every")),
        safety=safety_of(own),
    )
    _refuse_idle(options, own)
    if tuned and not (options.optimize or options.tuned):
        raise GpurunError(
            f"{tuned[0].name}: {tuned[0].word} needs --optimize",
            f"add --optimize, or write one value such as {tuned[0].values[0]}",
        )
    return options


def _refuse_idle(options: Options, own: Mapping[str, str]) -> None:
    """Refuse a flag that has no effect beside the others, or that contradicts one."""
    modes = {
        "optimize": options.optimize,
        "ddp": options.ddp,
        "scale": options.scale is not None,
        "tuned": options.tuned,
        "settings": options.settings is not None,
    }
    for flag, needed in NEEDS.items():
        if flag in own and not any(modes[mode] for mode in needed):
            wanted = " or ".join(f"--{mode}" for mode in needed)
            raise GpurunError(f"--{flag} needs {wanted}", "add it, or drop the flag")
    shown = [flag for flag in OF_TRAINING if flag in own]
    if shown and options.tune_only:
        raise GpurunError(f"--{shown[0]} is for a training, and nothing trains", "drop the flag")
    if options.elastic and options.safety.on_nonfinite is NonfiniteAction.SKIP:
        raise GpurunError(
            "--on-nonfinite skip is for one process: ranks would leave out different steps",
            "write --on-nonfinite stop",
        )
    if options.ddp and options.target.kind is TargetKind.COMMAND:
        raise GpurunError("--ddp needs a Python script", "drop --no-python")
    against = [name for name in AGAINST_SCALE if name in own]
    if against and options.scale is not None:
        raise GpurunError(f"--{against[0]} is not for --scale", "drop one of them")


def with_configuration(options: Options, cwd: Path) -> Options:
    """The options, completed from `gpurun.toml`; flags win."""
    if not options.optimize and not _is_configured(cwd):
        return options
    from gpurun.arguments.gpurun_toml import load_config

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
    """True if reading the configuration is worth its imports."""
    for folder in (cwd, *cwd.parents):
        if os.path.lexists(folder / "gpurun.toml"):
            return True
        try:
            if b"gpurun" in read_regular(folder / "pyproject.toml"):
                return True
        except OSError:
            continue
    return False


def _kind(own: dict[str, str], environment: Mapping[str, str]) -> TargetKind:
    module = "module" in own or environment.get("PET_MODULE", "0") not in ("", "0")
    command = "no-python" in own or environment.get("PET_NO_PYTHON", "0") not in ("", "0")
    if module and command:
        raise GpurunError("--module and --no-python exclude each other", "drop one of them")
    if command:
        return TargetKind.COMMAND
    return TargetKind.MODULE if module else TargetKind.SCRIPT


def _tuned(args: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[TunedArgument, ...]]:
    """The script's arguments without `@tune:`, and the tuned ones."""
    if not any(MARK in word for word in args):
        return args, ()
    from gpurun.arguments.tuned_script_arguments import as_it_is, tuned_arguments

    tuned = tuned_arguments(args, EFFECTS)
    return as_it_is(args, tuned), tuned
