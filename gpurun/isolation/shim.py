"""The process right above the user's script: builds its view of the files, starts it, reaps.

Where there is a process namespace this is its process 1, and the kernel ends all others with it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import termios
from collections.abc import Callable

from gpurun.isolation import landlock, syscalls
from gpurun.isolation.mode import Mode
from gpurun.isolation.newroot import NewRoot
from gpurun.isolation.order import BoxOrder

START = b"start\n"
"""Sent by the script's process right before its exec; credentials that come along hold its pid."""


def run(order: BoxOrder, locked: bool, own_processes: bool, tell: Callable[[bytes], None]) -> int:
    """Run the ordered program; its exit code, 128+n for a signal.

    `locked`: in a user namespace of our own. `own_processes`: in a process namespace of our own.
    """
    syscalls.die_with_parent(signal.SIGKILL)
    syscalls.become_subreaper()
    if order.mode is Mode.OVERLAY:
        _enter_overlay(order, locked, own_processes, tell)
    elif own_processes:
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
        _mount_proc("/proc")
    script = os.fork()
    if script == 0:
        _become_script(order, tell)
    os.close(order.report)
    os.close(order.terminal)
    return _reap_until(script)


def describe(error: Exception) -> str:
    """One line with the failing call or path and the system's words for it."""
    if not isinstance(error, OSError) or error.strerror is None:
        return f"{type(error).__name__}: {error}"
    where = f"{error.filename}: " if error.filename else ""
    return where + error.strerror


def _enter_overlay(
    order: BoxOrder, locked: bool, own_processes: bool, tell: Callable[[bytes], None]
) -> None:
    # The warden keeps the old root, for its memory folder, so the new one needs its own namespace.
    syscalls.unshare(syscalls.CLONE_NEWNS)
    root = NewRoot(order, locked)
    root.build()
    if own_processes:
        _mount_proc(f"{root.root}/proc")
    else:
        flags = syscalls.MS_BIND | syscalls.MS_REC
        syscalls.mount("/proc", f"{root.root}/proc", flags=flags)
    for note in root.notes:
        tell(f"note {note}\n".encode())
    root.enter()


def _mount_proc(target: str) -> None:
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    syscalls.mount("proc", target, "proc", flags)


def _become_script(order: BoxOrder, tell: Callable[[bytes], None]) -> None:
    try:
        syscalls.die_with_parent(signal.SIGKILL)
        os.setsid()
        fcntl.ioctl(order.terminal, termios.TIOCSCTTY, 0)
        for descriptor in (0, 1, 2):
            os.dup2(order.terminal, descriptor)
        os.chdir(order.cwd)
        if order.mode is Mode.LANDLOCK:
            landlock.confine((*order.writable, order.scratch))
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        tell(START)
        os.execvpe(order.argv[0], list(order.argv), order.env)
    except OSError as error:
        tell(f"error {describe(error)}\n".encode())
    finally:
        os._exit(127)


def _reap_until(script: int) -> int:
    while True:
        pid, status = os.wait()
        if pid == script:
            code = os.waitstatus_to_exitcode(status)
            return 128 - code if code < 0 else code
