"""Saves root modules and optimizers when the process dies by an exception or a SIGTERM, or when
`--on-nonfinite stop` ends it.

Python runs exit hooks after it has shown the script's traceback, and the traceback keeps alive what
the script trained. A SIGTERM reaches a handler of the script's own instead, if there is one. Of
several ranks, whose copies are alike, the first saves.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from gpurun.errors import say
from gpurun.records.spec import CHECKPOINT, DRAFT
from gpurun.runtime.core.recorder import error_text
from gpurun.runtime.observe.exit_metrics import write_exit_metrics
from gpurun.runtime.observe.optimizers import unless_compiling
from gpurun.runtime.observe.root_modules import ROOTS
from gpurun.runtime.observe.step_clock import CLOCK

STEP_SECONDS = 5.0
"""The longest that a SIGTERM waits for the end of an optimizer's step."""


class EmergencyCheckpoint:
    """Saves once, whatever the process dies of first; nothing here changes how it ends."""

    def __init__(self, run_dir: Path, quiet: bool) -> None:
        self._run_dir, self._quiet = run_dir, quiet
        self._owner = os.getpid()
        self._done = self._ending = False

    def install(self) -> None:
        """Stand at python's exit, and where a SIGTERM has no handler of the script's own."""
        atexit.register(self._at_exit)
        at_home = threading.current_thread() is threading.main_thread()
        if at_home and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._terminated)
            register_optimizer_step_post_hook(unless_compiling(self._stepped))

    def save_now(self, cause: str) -> None:
        """Save between two steps: the process is about to end by `sys.exit`."""
        if os.getpid() == self._owner:
            self._save(cause, inside_step=False)

    def _at_exit(self) -> None:
        error = getattr(sys, "last_value", None)
        if error is not None and os.getpid() == self._owner:
            frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
            self._save(error_text(error), _in_optimizer_step(frames))

    def _terminated(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() == self._owner and not self._done:
            inside = _in_optimizer_step(frame for frame, _ in traceback.walk_stack(frame))
            if inside and not self._ending:
                self._ending = True
                again = threading.Timer(STEP_SECONDS, os.kill, (self._owner, signal.SIGTERM))
                again.daemon = True
                again.start()
                return
            self._save("SIGTERM", inside)
        self._die()

    def _stepped(self, optimizer: Optimizer) -> None:
        if self._ending:
            self._save("SIGTERM", False)
            self._die()

    def _die(self) -> None:
        """End by SIGTERM as if nobody had stood in its way."""
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if os.getpid() == self._owner:
            with suppress(Exception):
                write_exit_metrics(STEP_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)

    def _save(self, cause: str, inside_step: bool) -> None:
        modules, optimizers = ROOTS.modules(), list(CLOCK.optimizers)
        if self._done or not (modules or optimizers):
            return
        self._done = True
        try:
            if any(map(_is_sharded, modules)):
                say("no emergency checkpoint: the model is sharded over its ranks")
                return
            contents = {
                "modules": [_state(module) for module in modules],
                "optimizers": [_state(optimizer) for optimizer in optimizers],
                "optimizer_steps": [
                    CLOCK.steps_of.get(CLOCK.number(optimizer), 0) for optimizer in optimizers
                ],
                "inside_optimizer_step": inside_step,
                "cause": cause,
                "unix_time": time.time(),
            }
            path = self._path()
            if _written(contents, path) and not self._quiet:
                say(f"emergency checkpoint: {os.path.relpath(path)} ({cause.splitlines()[0]})")
        except BaseException as error:  # a second Ctrl-C, too: the script's own end is what counts
            say(f"no emergency checkpoint: {_reason(error)}")

    def _path(self) -> Path:
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        name = CHECKPOINT if attempt == "0" else f"restart{attempt}-{CHECKPOINT}"
        return self._run_dir / name


def _state(part: nn.Module | Optimizer) -> dict[str, Any]:
    return {"class": type(part).__name__, "state_dict": part.state_dict()}


def _is_sharded(module: nn.Module) -> bool:
    """True if its state is spread over ranks: to gather it takes all of them, alive."""
    names = {type(part).__name__ for part in module.modules()}
    return "FullyShardedDataParallel" in names or any(
        hasattr(parameter, "to_local") for parameter in module.parameters()
    )


def _in_optimizer_step(frames: Iterable[FrameType]) -> bool:
    """True if a step is under way there: some parameters are a step ahead of others."""
    return any(isinstance(frame.f_locals.get("self"), Optimizer) for frame in frames)


def _written(contents: dict[str, Any], path: Path) -> bool:
    """Write to a temporary name and rename; False if another rank does or has done so."""
    draft = path.with_name(f"{DRAFT}{path.name}")
    try:
        number = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    except FileExistsError:
        return False
    try:
        with os.fdopen(number, "wb") as file:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)  # no other run takes it for a killed one's
            if path.exists():
                return False
            torch.save(contents, file)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
    finally:
        draft.unlink(missing_ok=True)
    return True


def _reason(error: BaseException) -> str:
    """The operating system's reason, where torch reports its own consequences of it."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return " ".join(error_text(error).split())
