"""Refuses scripts that `--ddp` cannot run as ranks: those that a library, or they, distribute."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType, ModuleType
from typing import Any, NoReturn

from gpurun.knobs.callers import is_users
from gpurun.runtime.core.patching import replace
from gpurun.runtime.core.post_import import when_imported
from gpurun.runtime.ddp.rank_info import line_of, or_stop_rank, stop_rank

STARTED_AT = "GPURUN_STARTED_AT"
"""The variable that tells a process where the script started it."""
WITHOUT = "run it without --ddp"
TRAINER = "transformers.trainer"


def note_starts() -> None:
    """Tell each process where the script started it."""
    from multiprocessing import process

    def watch(original: Callable[..., Any]) -> Callable[..., Any]:
        def start(*args: object, **kwargs: object) -> Any:
            where = line_of(sys._getframe(1))
            if where:
                os.environ[STARTED_AT] = where
            return original(*args, **kwargs)

        return start

    replace(process.BaseProcess, "start", watch)
    when_imported("subprocess", lambda module: _watch_popen(module, watch))


def _watch_popen(
    subprocess: ModuleType, watch: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    replace(subprocess.Popen, "__init__", watch)


def refuse_starter() -> NoReturn:
    """End a process that the script started and that trains."""
    where = os.environ.get(STARTED_AT)
    stop_rank(
        f"the script starts training processes of its own{f' at {where}' if where else ''}: each "
        "would join the ranks of --ddp",
        f"{WITHOUT}; if it is written for torchrun: gpurun --nproc-per-node N",
    )


def refuse_libraries() -> None:
    """Refuse what accelerate, transformers' Trainer or deepspeed distributes, once it begins to."""
    for name, kind in (("accelerate.accelerator", "Accelerator"), ("deepspeed", None)):
        when_imported(name, _refuse_library(name.partition(".")[0], kind))


def _refuse_library(library: str, kind: str | None) -> Callable[[ModuleType], None]:
    """Refuse a script that a library distributes, as soon as the script asks the library to."""

    def refuse(*args: object, **kwargs: object) -> NoReturn:
        where, trainer = _script_line(sys._getframe(1))
        name = "the Hugging Face Trainer" if trainer else library
        stop_rank(
            f"the script is distributed by {name}{f' at {where}' if where else ''}, which gives "
            "each rank batches of its own: under --ddp their batches would add up to a larger one",
            "run gpurun --nproc-per-node N without --ddp; its batch size is then a device's",
        )

    def imported(module: ModuleType) -> None:
        owner, name = (
            (module, "initialize") if kind is None else (getattr(module, kind), "__init__")
        )
        replace(owner, name, lambda original: or_stop_rank(library, refuse))

    return imported


def _script_line(frame: FrameType | None) -> tuple[str, bool]:
    """The innermost line of the script below a frame, and whether transformers' Trainer called."""
    trainer = False
    while frame is not None:
        trainer = trainer or frame.f_globals.get("__name__") == TRAINER
        if is_users(frame) and (where := line_of(frame)):
            return where, trainer
        frame = frame.f_back
    return "", trainer
