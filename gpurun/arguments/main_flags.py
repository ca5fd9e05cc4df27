"""`Options` made of the words of `gpurun [flags] train.py`, and of gpurun.toml."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpurun.arguments.flag_parser import Words, split
from gpurun.arguments.flag_table import (
    Flag,
    Flags,
    filled,
    flags_of,
    refuse_idle,
    typed_flags,
)
from gpurun.arguments.flag_values import EFFECTS, device_counts_of, duration_of
from gpurun.arguments.options import Options, Target, TargetKind
from gpurun.arguments.torchrun_flags import TORCHRUN_SWITCHES, TORCHRUN_VALUES, asks_for_ranks
from gpurun.arguments.trusted_files import read_regular
from gpurun.errors import GpurunError
from gpurun.records.script_arguments import MARK, TunedArgument
from gpurun.records.spec import NonfiniteAction

WORD = re.compile(rf"(?P<key>[^=]*=)?{MARK}(?=[:\[])(?P<rest>.*)", re.DOTALL)
"""A word of ours. `user@tune:folder` and `@tune.txt` are the script's own."""
REST = re.compile(r"(?:\[(?P<effect>[^\]]*)\])?:(?P<values>.*)", re.DOTALL)
FLAG = re.compile(r"--?[A-Za-z][^=]*")
COMMA = re.compile(r"(?<!\\),")
"""A comma behind a backslash is part of a value."""
DEFAULT_EFFECT = "training"
"""An argument can change anything, unless the user says what it does."""


def tuned_arguments(words: Sequence[str], effects: Sequence[str]) -> tuple[TunedArgument, ...]:
    """The arguments to tune, in their order; `GpurunError` if one is malformed."""
    found: dict[str, TunedArgument] = {}
    for position, word in enumerate(words):
        match = WORD.fullmatch(word)
        if match is None:
            continue
        name = _name(match["key"], words, position)
        if name in found:
            raise GpurunError(f"{name} is tuned twice", f"write {MARK} for it once")
        effect, values = _parsed(name, match["rest"], effects)
        found[name] = TunedArgument(name, word, position, values, effect)
    return tuple(found.values())


def as_it_is(words: Sequence[str], tuned: Sequence[TunedArgument]) -> tuple[str, ...]:
    """The script's arguments with the first value of each."""
    plain = list(words)
    for argument in tuned:
        plain[argument.position] = argument.holding(argument.values[0])
    return tuple(plain)


def _name(key: str | None, words: Sequence[str], position: int) -> str:
    if key:
        return key.removesuffix("=") if key.startswith("-") else key
    before = words[position - 1] if position else ""
    return before if FLAG.fullmatch(before) else f"argument {position + 1}"


def _parsed(name: str, rest: str, effects: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """The effect and the values that follow the mark."""
    match = REST.fullmatch(rest)
    if match is None:
        raise GpurunError(f"{name}: {MARK}{rest} has no colon", _example())
    effect = DEFAULT_EFFECT if match["effect"] is None else match["effect"]
    if effect not in effects:
        raise GpurunError(
            f"{name}: {MARK}[{effect}] names no effect", f"choose among {','.join(effects)}"
        )
    values = tuple(value.replace("\\,", ",") for value in COMMA.split(match["values"]))
    if "" in values:
        raise GpurunError(f"{name}: {MARK}{rest} has an empty value", _example())
    if len(values) < 2:
        raise GpurunError(f"{name}: {MARK}{rest} has one value: there is no choice", _example())
    if len(set(values)) < len(values):
        raise GpurunError(f"{name}: {MARK}{rest} has a value twice", _example())
    return effect, values


def _example() -> str:
    return f"write the script's own value first, then others: {MARK}:0.1,0.2"


MAIN: Flags = {
    **typed_flags(Options),
    "module": Flag("module", "the script is a module's name (also -m)"),
    "no-python": Flag("no-python", "the script is any command"),
    "version": Flag("version"),
    **{name: Flag(name) for name in TORCHRUN_SWITCHES},
    **{name: Flag(name, value="VALUE") for name in TORCHRUN_VALUES},
}
"""The flags of the main form: the options', those that say what the script is, torchrun's."""
EXCLUDED = {
    "tune-only": ("is for a training, and nothing trains", "drop the flag"),
    "scale": ("is not for --scale", "drop one of them"),
}
"""By mode, why it refuses flags that are against it, and the cure."""


def parse(argv: Iterable[str], environment: Mapping[str, str] | None = None) -> Options:
    """The options of the main form; `GpurunError` where a flag is unknown or has no good value."""
    words = split(list(argv), MAIN)
    return options_of(words, os.environ if environment is None else environment)


def options_of(words: Words, environment: Mapping[str, str]) -> Options:
    """The options that the words of a command line make; `GpurunError` as for `parse`."""
    own = words.own
    if words.program is None:
        if "scale" in own:
            device_counts_of("scale", own["scale"])  # the counts may be what was left out
        raise GpurunError("no script was named", "try: gpurun train.py, or gpurun --help")
    if "settings" in own and "tuned" in own:
        raise GpurunError("--settings and --tuned exclude each other", "drop one of them")
    args, tuned = _tuned(words.args)
    elastic = bool(words.torchrun) or asks_for_ranks(environment) or "ddp" in own
    options = filled(
        Options,
        own,
        target=Target(_kind(own, environment), words.program, args),
        tuned_arguments=tuned,
        torchrun=tuple(words.torchrun),
        elastic=elastic,
        optimize="optimize" in own or "tune-only" in own,
        tune_only="tune-only" in own or "dry-run" in own,
    )
    if elastic and options.grace_seconds is not None:
        waiting = f"--shutdown-timeout={math.ceil(options.grace_seconds)}"
        options = replace(options, torchrun=(*options.torchrun, waiting))
    refuse_idle(MAIN, own, options.modes, EXCLUDED)
    _refuse_contradictions(options)
    return options


def _refuse_contradictions(options: Options) -> None:
    """Refuse what one flag alone does not show to be wrong."""
    if options.elastic and options.on_nonfinite is NonfiniteAction.SKIP:
        raise GpurunError(
            "--on-nonfinite skip is for one process: ranks would leave out different steps",
            "write --on-nonfinite stop",
        )
    if options.ddp and options.target.kind is TargetKind.COMMAND:
        raise GpurunError("--ddp needs a Python script", "drop --no-python")
    if options.tuned_arguments and not (options.optimize or options.tuned):
        tuned = options.tuned_arguments[0]
        raise GpurunError(
            f"{tuned.name}: {tuned.word} needs --optimize",
            f"add --optimize, or write one value such as {tuned.values[0]}",
        )


def with_configuration(options: Options, cwd: Path) -> Options:
    """The options, completed from `gpurun.toml`; flags win."""
    if options.optimize or _is_configured(cwd):
        from gpurun.arguments.gpurun_toml import load_config

        config = load_config(cwd)
        configured = {
            one.option: config.flags[one.option]
            for one in flags_of(Options).values()
            if one.option in config.flags
            and getattr(options, one.option) in (None, False)
            and _holds(one, options.modes)
        }
        options = replace(options, **configured, knob_paths=config.knobs)
    if not options.optimize:
        return options
    budget = options.budget_seconds or duration_of("budget", MAIN["budget"].default)
    return replace(options, budget_seconds=budget, allow=options.allowed)


def _holds(one: Flag, modes: Mapping[str, bool]) -> bool:
    """True if a configured flag counts: `[optimize] budget` is no limit of `--scale`."""
    table = one.key.partition(".")[0]
    needed = (table,) if table in one.needs else one.needs
    return not needed or any(modes[mode] for mode in needed)


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

    tuned = tuned_arguments(args, EFFECTS)
    return as_it_is(args, tuned), tuned
