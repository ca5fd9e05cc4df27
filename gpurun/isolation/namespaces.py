"""Namespaces of the kernel and their mounts; Landlock."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpurun.isolation import syscalls

_WRITE_FILE = 1 << 1
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))
_REFER = 1 << 13
_TRUNCATE = 1 << 14


def write_rights(version: int) -> int:
    """All rights by which files change, as far as ABI `version` can forbid them.

    Before ABI 3 truncate(2) of a file cannot be forbidden; before ABI 2 moving between folders
    always is.
    """
    rights = _WRITE_FILE | _REMOVE_AND_MAKE
    if version >= 2:
        rights |= _REFER
    if version >= 3:
        rights |= _TRUNCATE
    return rights


def confine(writable: Sequence[str]) -> None:
    """From here on only the folders in `writable`, and devices, can be written to."""
    rights = write_rights(syscalls.landlock_version())
    ruleset = syscalls.landlock_ruleset(rights)
    for path in (*writable, "/dev/shm"):
        if os.path.isdir(path):
            syscalls.landlock_allow(ruleset, path, rights)
    for path in ("/dev", "/proc"):
        syscalls.landlock_allow(ruleset, path, rights & (_WRITE_FILE | _TRUNCATE))
    syscalls.forbid_new_privileges()
    syscalls.landlock_restrict(ruleset)
    os.close(ruleset)


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


KERNEL_FILE_SYSTEMS = frozenset(
    {
        "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs",
        "efivarfs", "fusectl", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs",
        "selinuxfs", "sysfs", "tracefs",
    }
)  # fmt: skip
"""Windows into the kernel, not places where files are kept."""


@dataclass(frozen=True)
class Mount:
    """One line of the table. `read_only`: nothing can be written through it."""

    point: str
    kind: str
    read_only: bool


def mounts() -> dict[str, Mount]:
    """Mount point to the mount that covers it (the last one, where several are stacked)."""
    found: dict[str, Mount] = {}
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        kind, _, options = right.split(" ")[:3]
        point = _unescape(fields[4])
        found.pop(point, None)
        read_only = "ro" in fields[5].split(",") or "ro" in options.split(",")
        found[point] = Mount(point, kind, read_only)
    return found


def kernel_points() -> frozenset[str]:
    """Where the kernel's windows are mounted: nothing there is a file to be read or compared."""
    table = mounts().values()
    return frozenset(mount.point for mount in table if mount.kind in KERNEL_FILE_SYSTEMS)


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
