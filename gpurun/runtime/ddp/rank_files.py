"""Files of ranks other than 0: they see rank 0's files, and delete folders in one go."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import ModuleType
from typing import Any

from gpurun.records.frames import drop_frame
from gpurun.runtime.core.patching import replace
from gpurun.runtime.core.post_import import when_imported
from gpurun.runtime.ddp import rank_layer


def install(rank: int) -> None:
    """Before torch is imported; rank 0 has the real files."""
    if rank == 0:
        return
    when_imported("shutil", _shutil_is_here)
    when_imported("torch", _torch_is_here)


def _shutil_is_here(module: ModuleType) -> None:
    replace(module, "rmtree", _watch_rmtree)


def _torch_is_here(module: ModuleType) -> None:
    replace(module, "load", _watch_load)


def _watch_rmtree(original: Callable[..., Any]) -> Callable[..., Any]:
    def rmtree(path: str | os.PathLike[str], *args: object, **kwargs: object) -> Any:
        try:
            folder = os.path.isdir(path) and not os.path.islink(path)
            if folder and kwargs.get("dir_fd") is None and rank_layer.delete_tree(path):
                return None
            return original(path, *args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise

    return rmtree


def _watch_load(original: Callable[..., Any]) -> Callable[..., Any]:
    def load(*args: object, **kwargs: object) -> Any:
        rank_layer.see_rank_zero()
        try:
            return original(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise

    return load
