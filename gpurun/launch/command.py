"""The command line that python's twin runs: interpreter, its flags, the target."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gpurun.options import Target, TargetKind

IN_MAIN = Path(__file__).resolve().parent.parent / "runtime" / "in_main.py"


def command_line(target: Target) -> tuple[str, ...]:
    """The words to execute for `target` in one process, as the user would have typed for python.

    Flags given to the interpreter that runs us (`python -W error -m gpurun ...`) are carried over.
    Where they switch python's start-up hook off (`-I`, `-E`, `-S`), the target is run by
    `runtime/in_main.py`, so that it is still observed.
    """
    if target.kind is TargetKind.COMMAND:
        return (target.path, *target.args)
    dash_m = ("-m",) if target.kind is TargetKind.MODULE else ()
    words = (*dash_m, target.path, *target.args)
    if sys.flags.ignore_environment or sys.flags.no_site:
        words = (str(IN_MAIN), *words)
    return (sys.executable, *interpreter_flags(sys.orig_argv), *words)


def interpreter_flags(orig_argv: Sequence[str]) -> tuple[str, ...]:
    """The interpreter's own flags in a `sys.orig_argv`, up to `-m`, `-c` or the script."""
    flags: list[str] = []
    words = iter(orig_argv[1:])
    for word in words:
        if not word.startswith("-") or word == "-":
            break
        if word.startswith("--"):
            flags.append(word)
            if word == "--check-hash-based-pycs":
                flags.append(next(words, "default"))
            continue
        letters = word[1:]
        stop = next((i for i, letter in enumerate(letters) if letter in "mcWX"), None)
        if stop is None:
            flags.append(word)
        elif letters[stop] in "mc":
            flags += [f"-{letters[:stop]}"] if stop else []
            break
        else:
            flags.append(word)
            if stop == len(letters) - 1:
                flags.append(next(words, ""))
    return tuple(flags)
