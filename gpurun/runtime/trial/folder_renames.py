"""Lets trials and ranks rename folders that were there before, also where the kernel refuses it.

An overlay that an ordinary user mounts cannot redirect a folder (`redirect_dir` and `userxattr`
exclude each other): rename(2) fails with EXDEV. There the entries are moved one by one.
"""

from __future__ import annotations

import errno
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

from gpurun.records.frames import transparent
from gpurun.runtime.core.patching import replace


def install() -> None:
    """Replace `os.rename` and `os.replace`, on which pathlib and shutil rest."""
    for name in ("rename", "replace"):
        original = getattr(os, name)
        replace(os, name, _moving)
        os.supports_dir_fd |= {getattr(os, name)} if original in os.supports_dir_fd else set()
        accessor = getattr(pathlib, "_NormalAccessor", None)  # of Python 3.10, which keeps them
        if hasattr(accessor, name):
            setattr(accessor, name, staticmethod(getattr(os, name)))


def _moving(original: Callable[..., Any]) -> Callable[..., Any]:
    @transparent
    def rename(src: Any, dst: Any, **descriptors: Any) -> None:
        try:
            original(src, dst, **descriptors)
        except OSError as error:
            if error.errno != errno.EXDEV or descriptors or not _on_one_file_system(src, dst):
                raise
            _move_entries(os.fspath(src), os.fspath(dst), rename)

    return rename


def _on_one_file_system(src: Any, dst: Any) -> bool:
    """True for a folder whose new place is in the same file system, as an overlay's folders are."""
    above = os.path.dirname(os.path.abspath(dst))
    return os.path.isdir(src) and os.lstat(src).st_dev == os.stat(above).st_dev


def _move_entries(src: Any, dst: Any, rename: Callable[[Any, Any], None]) -> None:
    if os.path.isdir(dst):
        os.rmdir(dst)  # refused, as by rename(2), unless it is empty
    os.mkdir(dst)
    for name in os.listdir(src):
        rename(os.path.join(src, name), os.path.join(dst, name))
    shutil.copystat(src, dst)
    os.rmdir(src)
