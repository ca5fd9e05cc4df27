"""The few Linux system calls that Python 3.10 does not offer, by ctypes. Numbers as in man 2."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000

MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MNT_DETACH = 2

_PR_SET_PDEATHSIG = 1
_PR_GET_PDEATHSIG = 2
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38

# These numbers are the same on every architecture: they are younger than the unified tables.
_SYS_MOUNT_SETATTR = 442
_SYS_LANDLOCK_CREATE_RULESET = 444
_SYS_LANDLOCK_ADD_RULE = 445
_SYS_LANDLOCK_RESTRICT_SELF = 446
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "ppc64le": 203, "riscv64": 41}

_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 1

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


class _LandlockRuleset(ctypes.Structure):
    _fields_ = (("handled_access_fs", ctypes.c_uint64),)


class _LandlockPathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32))


def _check(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` for fresh ones."""
    _check(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """mount(2); `OSError` names the target."""
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        os.fsencode(kind) or None,
        ctypes.c_ulong(flags),
        os.fsencode(data) or None,
    )
    _check(result, f"mount {kind or 'bind'} on {target}")


def unmount(target: str) -> None:
    """Detach the mount at `target` with all below it."""
    _check(_libc.umount2(os.fsencode(target), MNT_DETACH), f"umount {target}")


def make_read_only(path: str) -> None:
    """Make the mount at `path` and all below it read-only, other flags as they are (Linux 5.12)."""
    attributes = _MountAttributes(attr_set=_MOUNT_ATTR_RDONLY)
    result = _libc.syscall(
        _SYS_MOUNT_SETATTR,
        _AT_FDCWD,
        os.fsencode(path),
        _AT_RECURSIVE,
        ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )
    _check(result, f"mount_setattr {path}")


def pivot_root_here() -> None:
    """Make the current folder, a mount, the root, and drop the old root."""
    number = _SYS_PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(f"pivot_root: not known on {os.uname().machine}")
    _check(_libc.syscall(number, b".", b"."), "pivot_root")
    unmount(".")
    os.chdir("/")


def parent_death_signal() -> int:
    """The signal set by `die_with_parent`, 0 for none."""
    number = ctypes.c_int()
    _check(_libc.prctl(_PR_GET_PDEATHSIG, ctypes.byref(number), 0, 0, 0), "prctl")
    return number.value


def die_with_parent(signal_number: int) -> None:
    """Receive `signal_number` when the thread that forked us ends."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl")


def become_subreaper() -> None:
    """Orphaned descendants become our children instead of init's."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def forbid_new_privileges() -> None:
    """No setuid program gains anything from here on; Landlock demands it."""
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def landlock_version() -> int:
    """The Landlock ABI of this kernel; `OSError` where there is none."""
    result = _libc.syscall(_SYS_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), 1)
    return _check(result, "landlock_create_ruleset")


def landlock_ruleset(handled: int) -> int:
    """A file descriptor of a rule set that forbids the file rights of the mask `handled`."""
    attributes = _LandlockRuleset(handled_access_fs=handled)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    result = _libc.syscall(_SYS_LANDLOCK_CREATE_RULESET, ctypes.byref(attributes), size, 0)
    return _check(result, "landlock_create_ruleset")


def landlock_allow(ruleset: int, path: str, rights: int) -> None:
    """Allow the `rights` at and below `path`."""
    parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = _LandlockPathBeneath(allowed_access=rights, parent_fd=parent)
        result = _libc.syscall(_SYS_LANDLOCK_ADD_RULE, ruleset, 1, ctypes.byref(rule), 0)
        _check(result, f"landlock_add_rule {path}")
    finally:
        os.close(parent)


def landlock_restrict(ruleset: int) -> None:
    """Put this thread, and all it starts, under the rule set, for good."""
    _check(_libc.syscall(_SYS_LANDLOCK_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
