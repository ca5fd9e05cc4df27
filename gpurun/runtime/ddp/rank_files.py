"""Files of ranks other than 0: they see rank 0's files, and delete folders in one go.

A script for one process says `os.makedirs("out")`. Where rank 0 is faster the other ranks would
fail: the folder exists. A folder that rank 0 has made since the run began becomes the rank's own
too, with its files. A link that rank 0 has made gives way to the rank's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from gpurun.records.frames import drop_frame, transparent
from gpurun.runtime.core.patching import replace
from gpurun.runtime.core.post_import import when_imported
from gpurun.runtime.ddp import rank_layer
from gpurun.runtime.trial import folder_renames


def install(rank: int) -> None:
    """Before torch is imported; rank 0 has the real files."""
    if rank == 0:
        return
    take_over_creations()
    when_imported("shutil", _shutil_is_here)
    when_imported("torch", _torch_is_here)


def take_over_creations() -> None:
    """From here on this process may make a folder or link that rank 0 has just made, and rename a
    folder that was there before."""
    folder_renames.install()
    for name, yield_to in (("mkdir", _watch_mkdir), ("symlink", _watch_symlink)):
        original = getattr(os, name)
        if replace(os, name, yield_to) and original in os.supports_dir_fd:
            os.supports_dir_fd.add(getattr(os, name))
    when_imported("pathlib", _pathlib_is_here)


def _pathlib_is_here(module: ModuleType) -> None:
    """Python 3.10 keeps the functions of `os` in a class of its own."""
    accessor = getattr(module, "_NormalAccessor", None)
    for name in ("mkdir", "symlink") if accessor is not None else ():
        setattr(accessor, name, staticmethod(getattr(os, name)))


def _watch_mkdir(original: Callable[..., Any]) -> Callable[..., Any]:
    def mkdir(path: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(path, *args, **kwargs)
        except FileExistsError as error:
            if kwargs.get("dir_fd") is None and rank_layer.adopt_folder(path):
                return None
            drop_frame(error)
            raise
        except BaseException as error:
            drop_frame(error)
            raise

    return mkdir


def _watch_symlink(original: Callable[..., Any]) -> Callable[..., Any]:
    @transparent
    def symlink(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(src, dst, *args, **kwargs)
        except FileExistsError:
            if kwargs.get("dir_fd") is not None or not rank_layer.hide_entry(dst):
                raise
        return original(src, dst, *args, **kwargs)

    return symlink


def _shutil_is_here(module: ModuleType) -> None:
    replace(module, "rmtree", _watch_rmtree)


def _torch_is_here(module: ModuleType) -> None:
    replace(module, "load", _watch_load)


def _watch_rmtree(original: Callable[..., Any]) -> Callable[..., Any]:
    @transparent
    def rmtree(path: str | os.PathLike[str], *args: object, **kwargs: object) -> Any:
        folder = os.path.isdir(path) and not os.path.islink(path)
        if folder and kwargs.get("dir_fd") is None and rank_layer.delete_tree(path):
            return None
        return original(path, *args, **kwargs)

    return rmtree


def _watch_load(original: Callable[..., Any]) -> Callable[..., Any]:
    @transparent
    def load(*args: object, **kwargs: object) -> Any:
        rank_layer.see_rank_zero()
        return original(*args, **kwargs)

    return load
