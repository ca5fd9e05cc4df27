"""Copies what a trial has written so far, so that a later trial starts with it."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path


def copy_written(
    source: Path, dest: Path, is_new: Callable[[Path, os.stat_result], bool] | None = None
) -> int:
    """Copy folders, files and links below `source` to `dest`; the bytes of the files copied.

    `is_new` tells whether a file counts (all do without it). Deletion marks, sockets and the like
    are left out, and so is what vanishes meanwhile.
    """
    if dest.is_symlink():  # the trial has put a folder in its place
        dest.unlink()
    dest.mkdir(parents=True, exist_ok=True)
    total = 0
    try:
        entries = list(os.scandir(source))
    except OSError:
        return 0
    for entry in entries:
        path, target = Path(entry.path), dest / entry.name
        if entry.is_dir(follow_symlinks=False):
            total += copy_written(path, target, is_new)
        else:
            total += _copy_file(path, target, is_new)
    _copy_status(source, dest)
    return total


def _copy_file(
    source: Path, target: Path, is_new: Callable[[Path, os.stat_result], bool] | None
) -> int:
    try:
        status = source.lstat()
        kept = stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)
        if not kept or (is_new is not None and not is_new(source, status)):
            return 0
        target.unlink(missing_ok=True)
        shutil.copyfile(source, target, follow_symlinks=False)
        _copy_status(source, target)
    except (FileNotFoundError, PermissionError):
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def _copy_status(source: Path, target: Path) -> None:
    try:
        status = source.lstat()
        os.chown(target, status.st_uid, status.st_gid, follow_symlinks=False)
    except OSError:  # only root gives files away
        pass
    try:
        shutil.copystat(source, target, follow_symlinks=False)
    except OSError:  # a file system without some attribute
        pass
