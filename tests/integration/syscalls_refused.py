"""Runs a command as on a file system without locks, FIFOs and times of birth.

`python syscalls_refused.py COMMAND...`: the kernel refuses these calls to it and to all its
children (seccomp). Exit code 99: it cannot be told to here.
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
FLOCK, MKNOD_AT, STATX = 73, 259, 332
NUMBER, THIRD_ARGUMENT = 0, 32
"""Places in the kernel's record of a call."""
KIND_OF_FILE, FIFO = 0o170000, 0o010000
PR_SET_NO_NEW_PRIVILEGES, PR_SET_SECCOMP, FILTER_MODE = 38, 22, 2
CANNOT = 99

PROGRAM = [
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
]
"""Instructions: code, jumps if true and if false, operand."""


class Filter(ctypes.Structure):
    """`struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def refuse() -> bool:
    """Have the calls refused to this process from now on; False if that cannot be."""
    text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in PROGRAM))
    whole = Filter(len(PROGRAM), ctypes.cast(text, ctypes.c_void_p))
    libc = ctypes.CDLL(None)
    if platform.machine() != "x86_64":  # other numbers
        return False
    libc.prctl(PR_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    return not libc.prctl(PR_SET_SECCOMP, FILTER_MODE, ctypes.byref(whole), 0, 0)


if __name__ == "__main__":
    if not refuse():
        sys.exit(CANNOT)
    os.execvp(sys.argv[1], sys.argv[1:])
