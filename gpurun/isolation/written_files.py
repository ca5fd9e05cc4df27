"""Copies what a trial has written so far, so that a later trial starts with it."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

from gpurun.isolation.folder_removal import discard


def copy_written(
    source: Path, dest: Path, is_new: Callable[[Path, os.stat_result], bool] | None = None
) -> int:
    """Copy `source`, a folder with all below it, a file or a link; the bytes of the files copied.

    `is_new` tells whether a file counts (all do without it). Deletion marks, sockets and the like
    are left out, and so is what vanishes meanwhile. What is of another type at `dest` gives way.
    """
    try:
        status = source.lstat()
        if stat.S_ISDIR(status.st_mode):
            return _copy_folder(source, dest, is_new)
        kept = stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode)
        if not kept or (is_new is not None and not is_new(source, status)):
            return 0
        make_way(dest, for_folder=False)
        shutil.copyfile(source, dest, follow_symlinks=False)
        _copy_status(source, dest)
    except (FileNotFoundError, PermissionError):
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


def make_way(path: Path, *, for_folder: bool) -> None:
    """Remove what stands at `path`; for a folder a folder may stay."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
    elif not for_folder:
        discard(path)


def _copy_folder(
    source: Path, dest: Path, is_new: Callable[[Path, os.stat_result], bool] | None
) -> int:
    make_way(dest, for_folder=True)
    dest.mkdir(parents=True, exist_ok=True)
    try:
        names = os.listdir(source)
    except OSError:
        names = []
    total = sum(copy_written(source / name, dest / name, is_new) for name in names)
    _copy_status(source, dest)
    return total


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
