"""Copies of the user's files for a trial, where no overlay can hold its writes back."""

from __future__ import annotations

import os
import shutil
import stat

COPY_LIMIT_BYTES = 2 << 30
"""At most so much is copied for each trial."""
MOST_ENTRIES = 20_000
"""Folders with more entries are not copied."""


class CopyBudget:
    """The bytes that may still be copied for a trial."""

    def __init__(self) -> None:
        self.left = COPY_LIMIT_BYTES

    def take(self, path: str) -> bool:
        """True, and the bytes of a file or a whole folder are spent, if it may be copied.

        A folder with anything of somebody else, or that is no plain file, may not.
        """
        size = _size(path)
        if size is None or size > self.left:
            return False
        self.left -= size
        return True


def copy_file(source: str, target: str) -> None:
    """Copy a file with its times, owner and mode."""
    shutil.copyfile(source, target)
    like(source, target)


def like(source: str, target: str) -> None:
    """Give `target` mode and owner of `source`; as little as the user could do there."""
    try:
        status = os.stat(source)
    except OSError:
        return
    try:
        os.chown(target, status.st_uid, status.st_gid)
    except OSError:  # an owner unknown here: it becomes ours, so the mode must say what we may do
        mode = status.st_mode | 0o200 if os.access(source, os.W_OK) else status.st_mode & ~0o222
    else:
        mode = status.st_mode
    os.chmod(target, stat.S_IMODE(mode))
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _size(path: str) -> int | None:
    """Bytes at and below `path`; None for what cannot be copied."""
    total = entries = 0
    stack = [path]
    while stack:
        one = stack.pop()
        entries += 1
        try:
            status = os.lstat(one)
            if stat.S_ISDIR(status.st_mode):
                stack += [os.path.join(one, name) for name in os.listdir(one)]
            elif stat.S_ISREG(status.st_mode):
                total += status.st_size
            odd = stat.S_IFMT(status.st_mode) not in (stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK)
        except OSError:
            return None
        theirs = one != path and status.st_uid != os.geteuid()
        if odd or theirs or total > COPY_LIMIT_BYTES or entries > MOST_ENTRIES:
            return None
    return total
