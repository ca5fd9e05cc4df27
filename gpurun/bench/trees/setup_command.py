"""The setup command of a benchmark (`pip install -e .`, `make`), run on one side."""

from __future__ import annotations

import os
import subprocess
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gpurun.errors import ExitCode, GpurunError
from gpurun.launch.exit_code import exit_code_of
from gpurun.launch.process import die_with_parent
from gpurun.records.script_arguments import masked_text

LAST_LINES = 3


class SetupFailed(GpurunError):
    """The setup command failed on the side `side`: a commit that does not build."""

    def __init__(self, side: str, what: str, log: Path) -> None:
        super().__init__(what, f"its whole output is in {log}", ExitCode.BENCHMARK_FAILED)
        self.side = side
        self.log = log


def run_setup(
    command: str, side: str, folder: Path, environment: Mapping[str, str], logs: Path
) -> None:
    """Run `command` by the shell in `folder`, its output to `setup-<side>.log` in `logs`.

    `SetupFailed` tells the last lines. If gpurun is interrupted or killed, the command ends with
    all processes that it started.
    """
    log = logs / f"setup-{side}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    parent = os.getpid()
    with log.open("wb") as output, _guard() as group:

        def begin() -> None:
            die_with_parent(parent)
            os.write(group, b"%d\n" % os.getpid())

        child = subprocess.Popen(
            ["/bin/sh", "-c", command],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=begin,
        )
        code = exit_code_of(child.wait())
    if code:
        raise SetupFailed(side, _told(command, side, code, log), log)


@contextmanager
def _guard() -> Iterator[int]:
    """Have a process group killed by one that waits for a word from us, which an error keeps back.

    If this process is killed, the kernel would tell the shell alone, and not what the shell has
    started. The group is written to what is yielded, before it starts anything: an interruption
    may come before we know it.
    """
    reader, writer = os.pipe()
    try:
        guard = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r group && { read -r word || kill -s KILL -- "-$group"; }'],
            stdin=reader,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    finally:
        os.close(reader)
    try:
        yield writer
        os.write(writer, b"over\n")
    finally:
        os.close(writer)
        guard.wait()


def _told(command: str, side: str, code: int, log: Path) -> str:
    with log.open(encoding="utf-8", errors="replace") as lines:
        last = deque((" ".join(line.split()) for line in lines if line.strip()), LAST_LINES)
    words = " | ".join(last) if last else "it wrote nothing"
    text = f"setup failed on the {side} side: {command!r} ended with {code}: {words}"
    return masked_text(text, command.split())
