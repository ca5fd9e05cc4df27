"""A mount namespace of our own, with a user namespace around it where that takes one."""

from __future__ import annotations

import os

from gpurun.isolation import syscalls


def enter_mount_namespace() -> bool:
    """Leave the mount namespace; True if in a user namespace, one of our own where it takes that.

    (As root in a rootless container: mounts from outside are locked there, too.)
    """
    user, group = os.geteuid(), os.getegid()
    locked = not _is_initial_user_namespace()
    try:
        syscalls.unshare(syscalls.CLONE_NEWNS)
    except PermissionError:
        try:
            syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWNS)
        except OSError as error:
            message = f"user namespaces are not permitted ({error.strerror})"
            raise OSError(error.errno, message) from None
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
