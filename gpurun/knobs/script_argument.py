"""The knob of one argument of the script's own that the user asked to tune; command lines."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from gpurun.errors import GpurunError
from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts
from gpurun.records.script_arguments import TunedArgument


def with_flag(
    argv: tuple[str, ...], flag: str, new: str, old: str | None = None
) -> tuple[str, ...]:
    """The words with `flag` set to `new`, added at the end of the options where it is not there.

    `old` is its present value. It separates abbreviations that argparse accepts (`--batch`) and
    values without a space (`-b32`) from other words.
    """
    words = list(argv)
    end = words.index("--") if "--" in words else len(words)
    found = False
    for i in range(end):
        word, equals, attached = words[i].partition("=")
        following = words[i + 1] if i + 1 < end else None
        # argparse takes the unique beginning of a long flag for the flag
        beginning = word.startswith("--") and len(word) > 3 and flag.startswith(word)
        known = old is not None and old in (attached, following)
        if word == flag or (beginning and known):
            if equals:
                words[i], found = f"{word}={new}", True
            elif following is not None:
                words[i + 1], found = new, True
        elif old is not None and len(flag) == 2 and words[i] == flag + old:
            words[i], found = flag + new, True
    return tuple(words) if found else (*words[:end], flag, new, *words[end:])


FLAG = re.compile(r"-\S+")
KEY = re.compile(r"[^-=\s][^=]*=")
"""A word such as `optimizer.lr=0.1` of the scripts that read their own."""
PLACE = re.compile(r"argument ([1-9]\d*)")


class _ScriptArgument(Knob):
    """Another value of one of the script's own arguments, as text.

    Helps with what only the script can change: a bucket size, a number of streams, another model.
    Risks: gpurun does not know what the argument means. It counts as `training` unless the user
    says otherwise, and only the throughput speaks for a value.
    """

    order = 0
    """Asked for by name: before what gpurun tries of itself, one at a time."""
    most_values = sys.maxsize

    def __init__(self, argument: TunedArgument) -> None:
        self.name = argument.name  # type: ignore[misc]
        self.effect = Effect(argument.effect)  # type: ignore[misc]
        self._argument = argument

    def candidates(self, facts: Facts) -> Sequence[str]:
        """The values that the user listed behind the script's own value."""
        return self._argument.values[1:]

    def arguments(self, value: object, argv: tuple[str, ...]) -> tuple[str, ...]:
        """The command line with the value at its place, or in the word that the name tells."""
        if not isinstance(value, str):
            raise TypeError(f"{value!r} is not text")
        words, at = list(argv), self._argument.position
        if self._stands_at(at, argv):
            words[at] = self._argument.holding(value)
            return tuple(words)
        return _by_name(self.name, value, argv)

    def _stands_at(self, at: int, argv: tuple[str, ...]) -> bool:
        """True if one of its values stands there, behind the flag if it has one of its own word."""
        own = [self._argument.holding(value) for value in self._argument.values]
        if at >= len(argv) or argv[at] not in own:
            return False
        apart = self.name.startswith("-") and "=" not in argv[at]
        return not apart or argv[at - 1] == self.name

    def apply(self, value: object, hooks: Hooks) -> None:
        """Say that the script was started with it."""
        hooks.applied(f"{self.name} {value}")


def script_argument(argument: TunedArgument) -> Knob:
    """The knob that turns an argument; `GpurunError` where a settings file gives it no effect."""
    choices = [effect.value for effect in Effect]
    if argument.effect not in choices:
        raise GpurunError(
            f"{argument.name} has the effect {argument.effect!r}",
            f"choose among {','.join(choices)}",
        )
    return _ScriptArgument(argument)


def argument_called(name: str, tuned: Sequence[TunedArgument] = ()) -> TunedArgument | None:
    """The argument among the `tuned`, or what its name alone says; None if it is no argument's.

    A settings file written by hand says no more than `{"--lr": "0.2"}`.
    """
    known = next((argument for argument in tuned if argument.name == name), None)
    if known is not None:
        return known
    if any(kind.fullmatch(name) for kind in (FLAG, KEY, PLACE)):
        return TunedArgument(name, "", 0, (), Effect.TRAINING.value)
    return None


def _by_name(name: str, value: str, argv: tuple[str, ...]) -> tuple[str, ...]:
    if name.startswith("-"):
        return with_flag(argv, name, value)
    place = PLACE.fullmatch(name)
    if place is None:
        held = [name + value if word.startswith(name) else word for word in argv]
        return tuple(held) if any(w.startswith(name) for w in argv) else (*argv, name + value)
    words = list(argv)
    words[int(place[1]) - 1] = value
    return tuple(words)
