"""Runs a command to which the kernel refuses some calls, and to all its children (seccomp).

`python syscalls_refused.py WHICH COMMAND...`. "locks": as on a file system without locks, FIFOs and
times of birth. "shared-memory": a /dev/shm of its own cannot be mounted. Exit code 99: the kernel
cannot be told to here.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

LOAD, EQUAL, AND, RETURN = 0x20, 0x15, 0x54, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000
FLOCK, MOUNT, MKNOD_AT, STATX = 73, 165, 259, 332
NUMBER, THIRD_ARGUMENT, FOURTH_ARGUMENT = 0, 32, 40
"""Places in the kernel's record of a call."""
KIND_OF_FILE, FIFO = 0o170000, 0o010000
NOSUID_NODEV = 6
PR_SET_NO_NEW_PRIVILEGES, PR_SET_SECCOMP, FILTER_MODE = 38, 22, 2
CANNOT = 99

PROGRAMS = {
    "locks": [
        (LOAD, 0, 0, NUMBER),
        (EQUAL, 0, 1, FLOCK),
        (RETURN, 0, 0, FAIL | errno.ENOLCK),
        (EQUAL, 0, 1, STATX),
        (RETURN, 0, 0, FAIL | errno.ENOSYS),
        (EQUAL, 0, 4, MKNOD_AT),
        (LOAD, 0, 0, THIRD_ARGUMENT),
        (AND, 0, 0, KIND_OF_FILE),
        (EQUAL, 0, 1, FIFO),
        (RETURN, 0, 0, FAIL | errno.EPERM),
        (RETURN, 0, 0, ALLOW),
    ],
    "shared-memory": [
        (LOAD, 0, 0, NUMBER),
        (EQUAL, 0, 3, MOUNT),
        (LOAD, 0, 0, FOURTH_ARGUMENT),
        (EQUAL, 0, 1, NOSUID_NODEV),
        (RETURN, 0, 0, FAIL | errno.EPERM),
        (RETURN, 0, 0, ALLOW),
    ],
}
"""Instructions: code, jumps if true and if false, operand."""


class Filter(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def refuse(which: str) -> bool:
    """Have the calls refused to this process from now on; False if that cannot be."""
    program = PROGRAMS[which]
    text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in program))
    whole = Filter(len(program), ctypes.cast(text, ctypes.c_void_p))
    libc = ctypes.CDLL(None)
    if platform.machine() != "x86_64":  # other numbers
        return False
    libc.prctl(PR_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    return not libc.prctl(PR_SET_SECCOMP, FILTER_MODE, ctypes.byref(whole), 0, 0)


if __name__ == "__main__":
    if not refuse(sys.argv[1]):
        sys.exit(CANNOT)
    os.execvp(sys.argv[2], sys.argv[2:])
