"""The words of a command line, taken apart by a table of flags.

Not argparse: it would swallow the script's own `--`, and parsing must stop at the script.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from gpurun.arguments.flag_table import Flags
from gpurun.arguments.torchrun_flags import TORCHRUN_SWITCHES, TORCHRUN_VALUES
from gpurun.errors import ExitCode, GpurunError
from gpurun.records.script_arguments import masked

BELOW_BENCH = ("accept", "bisect", "history", "selftest")
OTHER_WORDS = {
    **{word: f"gpurun bench {word}" for word in BELOW_BENCH},
    "apply": "gpurun --tuned",
    "compare": "gpurun report RUN RUN",
    "cost": "gpurun report",
    "optimize": "gpurun --optimize",
    "run": "gpurun script.py",
    "scale": "gpurun --scale 1,2,4",
    "tune": "gpurun --optimize",
}
"""By a word that is no command of gpurun's, the command that does it."""


def refuse_mistyped(word: str, commands: Iterable[str], above: str = "gpurun") -> None:
    """`GpurunError` if no file has this name and one of the commands (`gpurun profile`) is near.

    `above` is what stands before a command: "gpurun" or "gpurun bench".
    """
    if os.path.exists(word) or not word.isalpha():
        return
    from difflib import get_close_matches

    known = {command: f"{above} {command}" for command in commands}
    if above == "gpurun":
        known = {**OTHER_WORDS, **known}
    near = get_close_matches(word.lower(), known, 1, cutoff=0.7)
    if near:
        raise GpurunError(
            f"there is no file {word!r}; did you mean `{known[near[0]]}`?", f"see {above} --help"
        )


HELP = "help"
SHORT = {"-m": "module", "-r": "redirects", "-t": "tee", "-h": HELP}


class HelpAsked(Exception):
    """The command line asks for the help text of its command; `USAGE` where it says nothing."""

    def __init__(self, code: ExitCode = ExitCode.OK) -> None:
        super().__init__(code)
        self.code = code


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


def split(argv: list[str], flags: Flags) -> Words:
    """Sort the words up to the program; everything after it is the program's own.

    `HelpAsked` for `--help`, `GpurunError` for a flag that is unknown or lacks its value.
    """
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
        if name == HELP:
            raise HelpAsked
        wanted = flags[name].values
        if not wanted:
            if value is not None:
                raise GpurunError(f"--{name} takes no value", f"write --{name} alone")
        else:
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
        if name is None or name not in (*flags, HELP):
            raise unknown_flag(word, flags)
        if len(word) > 2 and (name == HELP or not flags[name].value):
            raise unknown_flag(word, flags)
        return name, word[2:].removeprefix("=") or None
    text, equals, value = word[2:].partition("=")
    text = text.replace("_", "-")
    names = (*flags, HELP)
    matches = [text] if text in names else [f for f in names if f.startswith(text)]
    if len(matches) != 1:
        raise unknown_flag(word, flags, matches)
    return matches[0], value if equals else None


def unknown_flag(word: str, flags: Flags, matches: Sequence[str] = ()) -> GpurunError:
    """The error for a flag that nobody knows, with the nearest one."""
    (word,) = masked((word,))
    if matches:
        return GpurunError(
            f"{word} is ambiguous", "write one of " + ", ".join(f"--{m}" for m in matches)
        )
    from difflib import get_close_matches

    near = get_close_matches(word.lstrip("-").replace("_", "-"), (*flags, HELP), 1)
    todo = f"did you mean --{near[0]}?" if near else "see gpurun --help"
    return GpurunError(f"unknown flag {word}", f"{todo} (the script's own flags go after it)")


def split_all(argv: Sequence[str], flags: Flags) -> tuple[dict[str, str], list[str]]:
    """The flags and all words among them, in whatever order."""
    own: dict[str, str] = {}
    names: list[str] = []
    rest = list(argv)
    while rest:
        words = split(rest, flags)
        own |= words.own
        if words.program is None:
            break
        names.append(words.program)
        rest = list(words.args)
    return own, names


def flags_and_names(
    argv: Sequence[str], flags: Flags, command: str
) -> tuple[dict[str, str], list[str]]:
    """The flags and the name among them, in whatever order; `GpurunError` for two names."""
    own, names = split_all(argv, flags)
    if len(names) > 1:
        raise GpurunError(
            f"gpurun bench {command} takes one benchmark, not {names[-1]!r} too",
            "name one benchmark",
        )
    return own, names


def script_words(argv: list[str], flags: Flags, command: str) -> Words:
    """The words of a command that runs a script; `HelpAsked` where there are none.

    Refuses flags that are against this command, and a line that names no script.
    """
    if not argv:
        raise HelpAsked(ExitCode.USAGE)
    words = split(argv, flags)
    foreign = [name for name in words.own if command in flags[name].against]
    if foreign:
        raise GpurunError(f"--{foreign[0]} is not for {command}", "drop it")
    if words.program is None:
        raise GpurunError("no script was named", f"try: gpurun {command} train.py")
    return words
