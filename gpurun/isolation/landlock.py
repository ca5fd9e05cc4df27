"""Landlock (Linux 5.13): from here on files outside some folders cannot be written.

It knows no right for chmod, chown, utime and extended attributes: those still pass, and only the
comparison of the tree afterwards notices them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

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
