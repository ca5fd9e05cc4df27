"""Forks become gpurun's launcher, and what it starts: scripts, and sandboxes of scripts.

Where one of them executes python, the process that it has forked goes on instead: torch is there
already.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from tests.forked import REPOSITORY, read_at_start
from tests.forked_scripts import (
    REALLY,
    become_fresh,
    forget_handlers,
    new_streams,
    run_script,
    stop_measuring,
)

START = read_at_start(os.environ)
HASHES = (None, "0")
"""This process hashes texts like python with the second; without the variable any way will do."""


def launch(words: Sequence[str]) -> None:
    """Run gpurun's command line; its scripts go on in the processes that it forks for them."""
    from gpurun.__main__ import entry
    from gpurun.isolation import sandbox

    go_on_as_scripts()
    sandbox._supervisor_process = fork_supervisor
    sys.argv = [str(REPOSITORY / "gpurun" / "__main__.py"), *words]
    sys.orig_argv = [sys.executable, "-m", "gpurun", *words]
    sys.path[0] = os.getcwd()
    new_streams()
    entry()


def go_on_as_scripts() -> None:
    """From here on who executes python for a script goes on as the script."""
    os.execvpe = execute  # type: ignore[assignment]


def execute(file: str, args: Sequence[str], environment: dict[str, str]) -> None:
    """In place of `os.execvpe`, where torch and python would be the same."""
    from gpurun.launch.launch_command import BOOTSTRAP

    places = (str(REPOSITORY), os.pathsep.join((str(BOOTSTRAP), str(REPOSITORY))))
    if (
        file == sys.executable
        and len(args) > 1
        and args[1].endswith(".py")
        and os.path.isfile(args[1])
        and read_at_start(environment) == START
        and environment.get("PYTHONPATH") in places
        and environment.get("PYTHONHASHSEED") in HASHES
    ):
        become_fresh(environment)
        run_script(args[1:])
    REALLY(file, args, environment)


class Forked(subprocess.Popen[bytes]):
    """A forked child in place of one that was started."""

    def __init__(self, pid: int, stdin: int) -> None:
        self.args, self.pid, self.returncode = (), pid, None
        self.stdin, self.stdout, self.stderr = os.fdopen(stdin, "wb"), None, None
        self._child_created, self._waitpid_lock = True, threading.Lock()
        self._communication_started, self._input = False, None
        self._sigint_wait_secs = 0.25


def fork_supervisor(spec: Any) -> Forked:
    """The process that `sandbox._supervisor_process` starts, as a fork."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid == 0:
        supervise(reads, {spec.terminal: spec.terminal, spec.report: spec.report})
    os.close(reads)
    return Forked(pid, writes)


def supervise(lifeline: int, kept: Mapping[int, int]) -> NoReturn:
    """Become the supervisor of a sandbox. `kept`: descriptor there to descriptor here."""
    from gpurun.isolation import sandbox_supervisor

    try:
        os.setsid()
        os.chdir("/")
        nothing = os.open(os.devnull, os.O_RDWR)
        places = {0: lifeline, 1: nothing, 2: nothing, **kept}
        beyond = max(*places, *places.values()) + 1
        copies = {n: fcntl.fcntl(d, fcntl.F_DUPFD, beyond) for n, d in places.items()}
        for number, copy in copies.items():
            os.dup2(copy, number)
        numbers = sorted(places)
        for first, after in zip(numbers, (*numbers[1:], os.sysconf("SC_OPEN_MAX")), strict=True):
            os.closerange(first + 1, after)
        forget_handlers()
        stop_measuring()  # python starts it without coverage
        sandbox_supervisor.main()
    finally:
        os._exit(sandbox_supervisor.NOT_SET_UP)


def guard_sandbox(numbers: Sequence[int], descriptors: Sequence[int]) -> NoReturn:
    """Fork the supervisor of a sandbox of the tests' own process; tell its pid and exit code.

    `descriptors`: its lifeline, those that it calls `numbers`, and where to tell.
    """
    stop_measuring()
    lifeline, *kept, tells = descriptors
    if os.fork():
        os._exit(0)  # nobody waits for this one
    go_on_as_scripts()
    pid = os.fork()
    if pid == 0:
        supervise(lifeline, dict(zip(numbers, kept, strict=True)))
    for descriptor in (lifeline, *kept):
        os.close(descriptor)
    os.write(tells, f"{pid}\n".encode())
    _, status = os.waitpid(pid, 0)
    os.write(tells, f"{os.waitstatus_to_exitcode(status)}\n".encode())
    os._exit(0)
