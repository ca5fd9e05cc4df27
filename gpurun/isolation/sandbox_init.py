"""The process right above the user's script: builds its view of the files, starts it, reaps.

Where there is a process namespace this is its process 1, and the kernel ends all others with it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import termios
from collections.abc import Callable

from gpurun.errors import visible
from gpurun.isolation import kill_orphans, namespaces, syscalls
from gpurun.isolation.isolation_mode import Mode, SupervisorSpec
from gpurun.isolation.overlay_root import OverlayRoot
from gpurun.launch.exit_code import exit_code_of

START = b"start\n"
"""Sent by the script's process right before its exec; credentials that come along hold its pid."""


def run(
    spec: SupervisorSpec, locked: bool, own_processes: bool, tell: Callable[[bytes], None]
) -> int:
    """Run the program; its exit code, 128+n for a signal.

    `locked`: in a user namespace of our own. `own_processes`: in a process namespace of our own.
    """
    if not own_processes:  # else the kernel ends the others
        signal.signal(signal.SIGTERM, _end_all)
    syscalls.die_with_parent(signal.SIGKILL if own_processes else signal.SIGTERM)
    syscalls.become_subreaper()
    if spec.mode is Mode.OVERLAY:
        _enter_overlay(spec, locked, own_processes, tell)
    elif own_processes:
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
        _mount_proc("/proc")
    script = os.fork()
    if script == 0:
        _become_script(spec, tell)
    os.close(spec.report)
    os.close(spec.terminal)
    return _reap_until(script)


def describe(error: Exception) -> str:
    """One line with the failing call or path and the system's words for it."""
    if not isinstance(error, OSError) or error.strerror is None:
        return visible(f"{type(error).__name__}: {error}")
    where = f"{error.filename}: " if error.filename else ""
    return visible(where + error.strerror)


def _enter_overlay(
    spec: SupervisorSpec, locked: bool, own_processes: bool, tell: Callable[[bytes], None]
) -> None:
    # The supervisor keeps the old root, for its memory folder: the new one needs its own namespace.
    syscalls.unshare(syscalls.CLONE_NEWNS)
    root = OverlayRoot(spec, locked)
    root.build()
    if own_processes:
        _mount_proc(f"{root.root}/proc")
    else:
        flags = syscalls.MS_BIND | syscalls.MS_REC
        syscalls.mount("/proc", f"{root.root}/proc", flags=flags)
    for note in root.notes:
        tell(f"note {visible(note)}\n".encode())
    root.enter()


def _mount_proc(target: str) -> None:
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    syscalls.mount("proc", target, "proc", flags)


def _become_script(spec: SupervisorSpec, tell: Callable[[bytes], None]) -> None:
    try:
        syscalls.die_with_parent(signal.SIGKILL)
        os.setsid()
        fcntl.ioctl(spec.terminal, termios.TIOCSCTTY, 0)
        for descriptor in (0, 1, 2):
            os.dup2(spec.terminal, descriptor)
        os.chdir(spec.cwd)
        if spec.mode is Mode.LANDLOCK:
            namespaces.confine((*spec.writable, spec.scratch))
        for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        tell(START)
        os.execvpe(spec.argv[0], list(spec.argv), spec.env)
    except OSError as error:
        tell(f"error {describe(error)}\n".encode())
    finally:
        os._exit(127)


def _end_all(*_: object) -> None:
    """The supervisor was killed, which would have done this."""
    kill_orphans.kill_descendants(os.getpid())
    os._exit(128 + signal.SIGKILL)


def _reap_until(script: int) -> int:
    while True:
        pid, status = os.wait()
        if pid == script:
            return exit_code_of(os.waitstatus_to_exitcode(status))
