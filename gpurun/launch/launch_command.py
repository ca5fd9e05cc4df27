"""The command lines that start a target: python's twin for one process, the agent for ranks."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from gpurun.arguments.options import Target, TargetKind
from gpurun.errors import GpurunError

PACKAGE = Path(__file__).resolve().parent.parent
AGENT = (
    f"import sys; sys.path[0] = {str(PACKAGE.parent)!r}; "
    "from gpurun.launch.elastic_agent import main; sys.exit(main(sys.argv[1:]))"
)
KIND_FLAGS = {
    TargetKind.SCRIPT: (),
    TargetKind.MODULE: ("-m",),
    TargetKind.COMMAND: ("--no-python",),
}


def command_line(target: Target, python: str = sys.executable) -> tuple[str, ...]:
    """The words to execute for `target` in one process, as the user would have typed for python.

    Flags given to the interpreter that runs us (`python -W error -m gpurun ...`) are carried over.
    `python`: the interpreter that runs it. `GpurunError` under flags that switch python's start-up
    hook off.
    """
    if target.kind is TargetKind.COMMAND:
        return (target.path, *target.args)
    end = ("--",) if target.kind is TargetKind.SCRIPT and target.path.startswith("-") else ()
    words = (*KIND_FLAGS[target.kind], *end, target.path, *target.args)
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise GpurunError(
            "python runs gpurun with -I, -E or -S: no script can be observed under these flags",
            "start gpurun without them",
        )
    return (python, *interpreter_flags(sys.orig_argv), *words)


def agent_command_line(torchrun: Sequence[str], target: Target) -> tuple[str, ...]:
    """The words that run `target` in ranks on an elastic agent of its own process.

    For trials; a plain run has the agent in the launcher itself (`elastic_agent.run_elastic`).
    """
    return (sys.executable, "-c", AGENT, *typed_words(torchrun, target))


def typed_words(torchrun: Sequence[str], target: Target) -> tuple[str, ...]:
    """The words behind gpurun's own flags that launch `target` like this."""
    end = ("--",) if target.path.startswith("-") else ()
    return (*torchrun, *KIND_FLAGS[target.kind], *end, target.path, *target.args)


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
