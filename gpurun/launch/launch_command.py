"""How a program is launched: its command line, its spec, the environment that leads it there."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from gpurun.arguments.options import Target, TargetKind
from gpurun.errors import GpurunError
from gpurun.measure.kernel_facts import kernel_oom_kills, start_ticks
from gpurun.records.codec import to_json
from gpurun.records.spec import SPEC_VARIABLE, RunSpec
from gpurun.rundir import write_json

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


def write_spec(spec: RunSpec) -> Path:
    """Write it into its run folder, with what only the kernel knows; OSError."""
    path = Path(spec.run_dir) / "spec.json"
    started, kills = start_ticks(spec.launcher_pid), kernel_oom_kills()
    write_json(path, to_json(replace(spec, kernel_oom_kills=kills, launcher_started=started)))
    return path


BOOTSTRAP = Path(__file__).resolve().parent.parent / "runtime" / "bootstrap"


def child_environment(spec_path: Path, base: Mapping[str, str]) -> dict[str, str]:
    """`base` with our bootstrap folder first on PYTHONPATH and the spec named.

    The current folder is never put on PYTHONPATH: an empty PYTHONPATH stays without empty parts,
    which python would read as the current folder.
    """
    inherited = base.get("PYTHONPATH", "")
    parts = [part for part in (str(BOOTSTRAP), inherited) if part]
    if inherited.split(os.pathsep)[0] == str(BOOTSTRAP):
        parts = [inherited]  # gpurun inside gpurun
    return {
        **base,
        "PYTHONPATH": os.pathsep.join(parts),
        SPEC_VARIABLE: str(spec_path),
    }
