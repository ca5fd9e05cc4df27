"""`@tune:` words among the script's arguments, such as `--lr @tune:0.1,0.2`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpurun.errors import GpurunError
from gpurun.records.script_arguments import MARK, TunedArgument

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
