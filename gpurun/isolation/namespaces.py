"""A mount namespace of our own, with a user namespace around it where that takes one."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

from gpurun.isolation import syscalls


def enter_mount_namespace() -> bool:
    """Leave the mount namespace; True if in a user namespace, one of our own where it takes that.

    (As root in a rootless container: mounts from outside are locked there, too.) Where a step is
    refused, `OSError` says so and this process is where it was: a child takes all steps first.
    """
    number = errno_in_child(_enter)
    if number:
        raise OSError(number, f"user namespaces are not permitted ({os.strerror(number)})")
    return _enter()


def errno_in_child(work: Callable[[], object]) -> int:
    """The number of the error that `work` fails with in a child process; 0 if it succeeds."""
    child = os.fork()
    if child == 0:
        number = errno.EPERM
        try:
            work()
            number = 0
        except OSError as error:
            number = error.errno or number
        finally:
            os._exit(number)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _enter() -> bool:
    user, group = os.geteuid(), os.getegid()
    locked = not _is_initial_user_namespace()
    try:
        syscalls.unshare(syscalls.CLONE_NEWNS)
    except PermissionError:
        syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
        # To themselves: the script sees the user that it always sees.
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
        locked = True
    syscalls.mount("none", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
    return locked


def _is_initial_user_namespace() -> bool:
    with open("/proc/self/uid_map") as file:
        return file.read().split() == ["0", "0", str(2**32 - 1)]


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
