"""One process: python's twin. Imports no torch and hardly anything else.

The parent blocks its signals and waits for them one at a time, so nothing runs in a handler and
nothing is lost between fork and wait. A signal that was sent to us alone is passed on. One that was
sent to all (by the terminal, `timeout`, a batch system) has reached the child already: a bystander
tells.
"""

from __future__ import annotations

import errno
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext, suppress
from typing import NoReturn

from gpurun.errors import GpurunError, say, visible
from gpurun.launch.exit_code import exit_code_of

HEARD_SECONDS = 0.05
"""A batch system sends a signal to the processes of a job one after the other, within so long."""
FORWARDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
)
"""The signals that a launcher may pass on."""
TELLS = """
import _signal, _thread, posix
_thread.start_new_thread(lambda: (posix.read(0, 1), posix._exit(0)), ())
while True:
    posix.write(1, bytes([_signal.sigwait(_signal.pthread_sigmask(_signal.SIG_BLOCK, ()))]))
"""
"""Its program: a byte for each signal. Standard input ends when the launcher does, in whatever way;
the modules are those that are built into python, for it must be there soon."""


class Bystander:
    """A process in which all signals stay blocked, and which tells of each that it gets.

    It is the launcher's own python, and the script's words are among its own. So signals sent by
    name reach both or neither.
    """

    def __init__(self, command: Sequence[str]) -> None:
        self._told: list[int] = []
        self._pid, self._lifeline, self._tells = 0, -1, -1
        self._start((sys.executable, "-I", "-S", "-c", TELLS, *command))

    def heard(self, number: int) -> bool:
        """True if it got the signal too."""
        until = time.monotonic() + HEARD_SECONDS
        while True:
            if self._pending(number):  # it will be told, if not at once
                until = time.monotonic() + HEARD_SECONDS
            with suppress(BlockingIOError):
                self._told += os.read(self._tells, 1024) if self._pid else b""
            if number in self._told:
                self._told.remove(number)
                return True
            if time.monotonic() > until:
                return False
            time.sleep(0.002)

    def close(self) -> None:
        """End it."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            with suppress(ChildProcessError):  # of a launcher that ignores SIGCHLD
                os.waitpid(self._pid, 0)
            os.close(self._lifeline)
            os.close(self._tells)
        self._pid = 0

    def _start(self, words: tuple[str, ...]) -> None:
        """Where the system has no process left the id stays 0, and nothing is heard."""
        ends: list[int] = []
        try:
            ends += os.pipe()
            ends += os.pipe()
            (its_input, lifeline, tells, its_output) = ends
            actions = (
                (os.POSIX_SPAWN_DUP2, its_input, 0),
                (os.POSIX_SPAWN_DUP2, its_output, 1),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            )
            self._pid = os.posix_spawn(
                sys.executable, words, os.environ, file_actions=actions, setsigmask=FORWARDED
            )
        except OSError:
            for end in ends:
                os.close(end)
            return
        os.close(its_input)
        os.close(its_output)
        os.set_blocking(tells, False)
        self._lifeline, self._tells = lifeline, tells

    def _pending(self, number: int) -> bool:
        """True while the signal has reached it and is not told yet."""
        try:
            with open(f"/proc/{self._pid}/status", "rb") as status:
                waiting = next(line for line in status if line.startswith(b"ShdPnd:"))
        except (OSError, StopIteration):
            return False
        return bool(int(waiting.split()[1], 16) >> (number - 1) & 1)


WAITED = frozenset((*FORWARDED, signal.SIGCHLD))
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
"""Signals that ask to end, as torch's agent takes them."""
SI_KERNEL = 0x80
PR_SET_PDEATHSIG = 1
DRAIN_LIMIT = 64


def run_process(
    command: Sequence[str],
    environment: Mapping[str, str],
    tick: Callable[[int], None] | None = None,
    interval: float = 0.5,
    grace: float | None = None,
    heard: Callable[[int], None] | None = None,
) -> int:
    """Run `command` to its end and return its exit code, 128+n if signal n ended it.

    `tick(pid)` is called in this process every `interval` seconds meanwhile. `grace`: seconds from
    the first signal that asks to end until SIGKILL; None: as long as it takes, as under python.
    `heard(number)` is called for each signal that comes.
    """
    if not sys.platform.startswith("linux"):
        raise GpurunError(f"gpurun does not run on {sys.platform}", "run it on Linux")
    sys.stdout.flush()
    sys.stderr.flush()
    ignored_children = signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN
    if ignored_children:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, WAITED)
    try:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            _become(command, environment, mask, parent, ignored_children)
        with closing(Bystander(command)) as bystander:
            return _wait(pid, bystander, tick, interval, grace, heard)
    finally:
        _drain()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that forked it ends.

    `parent` is the process id of the parent; if it is gone already, this process ends at once.
    """
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def _become(
    command: Sequence[str],
    environment: Mapping[str, str],
    mask: set[int | signal.Signals],
    parent: int,
    ignored_children: bool,
) -> NoReturn:
    """In the child: turn into the command, or say in one line why not."""
    try:
        die_with_parent(parent)
        for number in (signal.SIGPIPE, signal.SIGXFSZ):  # python ignores these for itself
            signal.signal(number, signal.SIG_DFL)
        for number in FORWARDED:  # one that comes before the exec must end this process, not raise
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        if ignored_children:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.execvpe(command[0], list(command), dict(environment))
    except OSError as error:
        os.write(2, f"gpurun: cannot run {visible(command[0])}: {error.strerror}\n".encode())
        os._exit(126 if error.errno == errno.EACCES else 127)
    finally:
        os._exit(126)


def _wait(
    pid: int,
    bystander: Bystander,
    tick: Callable[[int], None] | None,
    interval: float,
    grace: float | None,
    heard: Callable[[int], None] | None,
) -> int:
    kill_at = math.inf
    with nullcontext() if tick is None and grace is None else _woken_every(interval):
        due = time.monotonic() + interval / 2
        while True:
            arrived = signal.sigwaitinfo(WAITED)
            if arrived.si_signo != signal.SIGCHLD:
                if heard is not None:
                    heard(arrived.si_signo)
                if grace is not None and arrived.si_signo in ENDING:
                    kill_at = min(kill_at, time.monotonic() + grace)
                if arrived.si_code != SI_KERNEL and not bystander.heard(arrived.si_signo):
                    os.kill(pid, arrived.si_signo)
                continue
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                return exit_code_of(os.waitstatus_to_exitcode(status))
            if time.monotonic() >= kill_at:
                say(f"the script did not end within {grace:g} s; gpurun kills it (--grace)")
                os.kill(pid, signal.SIGKILL)
                kill_at = math.inf
            if tick is not None and time.monotonic() >= due:
                due = time.monotonic() + interval / 2  # the end of another child does not count
                tick(pid)


@contextmanager
def _woken_every(interval: float) -> Iterator[None]:
    """A thread wakes this one every `interval` seconds meanwhile."""
    over = threading.Event()
    waiting = threading.get_ident()
    waker = threading.Thread(target=_wake, args=(waiting, interval, over), daemon=True)
    with suppress(RuntimeError):  # no more threads are allowed: the script runs, without ticks
        waker.start()
    try:
        yield
    finally:
        over.set()
        if waker.ident is not None:
            waker.join()


def _wake(waiting: int, interval: float, over: threading.Event) -> None:
    """Wake the waiting thread every `interval` seconds, until `over`.

    `signal.sigtimedwait` with a timeout is of no use for that: where this process is stopped and
    continued only after the timeout, it returns a signal that never came (Python 3.10 to 3.13).
    """
    while not over.wait(interval):
        signal.pthread_kill(waiting, signal.SIGCHLD)


def _drain() -> None:
    """Take signals that came for a child that has ended: they must not hit us on unblocking."""
    for _ in range(DRAIN_LIMIT):
        if signal.sigtimedwait(WAITED, 0) is None:
            return
