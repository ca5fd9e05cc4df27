"""The outermost process of a sandbox: obeys the launcher, ends the sandbox, and outlives neither.

Started as `python -I -S -c` with the spec on its standard input, which then stays open as a
lifeline: any byte on it, or its end when the launcher dies however suddenly, means kill. (A parent
death signal would follow the launcher's *thread* that made the sandbox, so a pipe it is.)
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from gpurun.isolation import kill_orphans, sandbox_init, syscalls
from gpurun.isolation.folder_removal import discard
from gpurun.isolation.isolation_mode import MEMORY, Mode, SupervisorSpec
from gpurun.isolation.namespaces import enter_mount_namespace, errno_in_child
from gpurun.isolation.overlay_root import SHARED_MEMORY, mount_shared_memory, prepare_memory
from gpurun.launch.exit_code import exit_code_of
from gpurun.records.codec import from_json

KILLED = 128 + signal.SIGKILL
NOT_SET_UP = 70
_LIFELINE = 0


def main() -> None:
    """Set up the sandbox, guard it, and exit with the code of its script."""
    spec = from_json(SupervisorSpec, json.loads(_read_line(_LIFELINE)))

    def tell(message: bytes) -> None:
        os.write(spec.report, message)

    os.set_inheritable(spec.report, False)
    signal_pipe, wakeup = os.pipe()
    os.set_blocking(wakeup, False)
    signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        syscalls.become_subreaper()
        locked = spec.mode is not Mode.IN_PLACE and _leave_files(spec)
        own_processes = _leave_processes()
        child = os.fork()
    except OSError as error:
        tell(f"error {sandbox_init.describe(error)}\n".encode())
        os._exit(NOT_SET_UP)
    if child == 0:
        _run_init(spec, locked, own_processes, tell)
    os.close(spec.report)
    os.close(spec.terminal)
    os._exit(_guard(child, signal_pipe, spec.scratch))


def _run_init(
    spec: SupervisorSpec, locked: bool, own_processes: bool, tell: Callable[[bytes], None]
) -> None:
    code = NOT_SET_UP
    try:
        signal.set_wakeup_fd(-1)
        os.close(_LIFELINE)
        code = sandbox_init.run(spec, locked, own_processes, tell)
    except Exception as error:
        tell(f"error {sandbox_init.describe(error)}\n".encode())
    finally:
        os._exit(code)


def _read_line(descriptor: int) -> bytes:
    """The spec. Nothing follows it until the launcher has heard of the start."""
    line = b""
    while not line.endswith(b"\n"):
        block = os.read(descriptor, 1 << 16)
        if not block:
            sys.exit(KILLED)
        line += block
    return line


def _leave_files(spec: SupervisorSpec) -> bool:
    """Take namespaces of our own for mounts and shared memory; True if in a user namespace.

    Landlock does without where it must: files in /dev/shm, segments and queues then stay.
    """
    try:
        locked = enter_mount_namespace()
    except OSError:
        if spec.mode is Mode.OVERLAY:
            raise
        return False
    with suppress(OSError):  # a kernel without it
        syscalls.unshare(syscalls.CLONE_NEWIPC)
    if spec.mode is Mode.OVERLAY:
        prepare_memory(spec.scratch)
    elif os.access(SHARED_MEMORY, os.W_OK) and not os.listdir(SHARED_MEMORY):
        with suppress(OSError):
            mount_shared_memory(SHARED_MEMORY)
    return locked


def _leave_processes() -> bool:
    """Give our next child a process namespace, where its /proc can be mounted too."""
    if not _could_mount_proc():
        return False
    syscalls.unshare(syscalls.CLONE_NEWPID)
    return True


def _could_mount_proc() -> bool:
    """Try it in a child: a container that masks parts of /proc forbids a fresh one."""

    def mount_proc() -> None:
        syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
        syscalls.mount("proc", "/proc", "proc")

    def in_namespaces() -> None:
        syscalls.unshare(syscalls.CLONE_NEWNS | syscalls.CLONE_NEWPID)
        if errno_in_child(mount_proc):
            raise PermissionError

    return not errno_in_child(in_namespaces)


def _guard(child: int, signal_pipe: int, scratch: str) -> int:
    """Wait for the init process or for the launcher; no process of the sandbox lives on return."""
    poller = select.poll()
    poller.register(_LIFELINE, select.POLLIN)
    poller.register(signal_pipe, select.POLLIN)
    code = None
    while code is None:
        ready = [descriptor for descriptor, _ in poller.poll()]
        if signal_pipe in ready:
            os.read(signal_pipe, 4096)
            code = _exit_code_of(child)
        if code is None and _LIFELINE in ready:
            if os.read(_LIFELINE, 1):
                kill_orphans.kill_descendants(os.getpid())
                return KILLED  # the launcher lives, and cleans up
            code = KILLED
    kill_orphans.kill_descendants(os.getpid())
    _discard(scratch)
    return code


def _exit_code_of(child: int) -> int | None:
    """The init process's exit code if it has ended; reaps orphans of the sandbox on the way."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return KILLED
        if pid == 0:
            return None
        if pid == child:
            return exit_code_of(os.waitstatus_to_exitcode(status))


def _discard(scratch: str) -> None:
    try:
        syscalls.unmount(f"{scratch}/{MEMORY}")
    except OSError:  # never mounted
        pass
    discard(Path(scratch))
