"""Loader workers that end with their parent.

A DataLoader's worker outlives a parent that was killed: PyTorch's own check runs only between
batches, so a worker blocked in a data set stays, with its memory. Here a thread of the worker waits
on the parent's pidfd. (PR_SET_PDEATHSIG would follow the thread that built the iterator, not the
process.)

The guarded loop carries torch's own name, by which spawn and forkserver pickle it. A child without
our hooks then simply finds torch's loop.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from gpurun.knobs.loading.added_workers import (
    KEPT_MARK,
    end_apart,
    is_added,
    keep_apart,
    own_positions,
    settings_of_children,
)
from gpurun.knobs.loading.worker_changes import answering
from gpurun.records.frames import transparent
from gpurun.runtime.core.patching import guarded, replace

POLL_SECONDS = 0.5


def install(torch: ModuleType) -> None:
    """Guard every loader worker that this process starts, or that it is."""
    guard(torch.utils.data._utils.worker)


def guard(worker: ModuleType) -> None:
    """Guard the workers of module `torch.utils.data._utils.worker`."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        @transparent
        def worker_loop(*args: object, **kwargs: object) -> Any:
            guarded("orphan workers", end_with_parent)()
            if KEPT_MARK in settings_of_children():
                args = guarded("kept workers", answering)(args) or args
            if not is_added():
                return original(*args, **kwargs)
            guarded("added workers", keep_apart)(worker)
            _own_positions()
            try:
                return original(*args, **kwargs)
            finally:
                end_apart()

        return worker_loop

    replace(worker, "_worker_loop", make)


def _own_positions() -> None:
    """End an added worker that would mix up the records of a file: its loader raises an error."""
    try:
        own_positions()
    except OSError as error:
        path = os.path.realpath(error.filename or "")
        raise SystemExit(
            f"gpurun: the setting loader_workers ends this worker: {path} cannot be opened again "
            f"({error.strerror}), and forked workers would share its position\n"
            "gpurun: leave loader_workers out of the settings"
        ) from None


def end_with_parent() -> None:
    """Start the thread that kills this process once the process that asked for it has ended."""
    from multiprocessing import parent_process

    asked_by = parent_process()  # under forkserver not the one that forked
    parent = asked_by.pid if asked_by is not None else None
    if parent is not None:
        name = "gpurun-orphan-workers"
        threading.Thread(target=_watch, args=(parent,), name=name, daemon=True).start()


def _watch(parent: int) -> None:
    _wait_for_end(parent)
    os.kill(os.getpid(), signal.SIGKILL)


def _wait_for_end(process: int) -> None:
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        return
    except (OSError, AttributeError):
        _poll_for_end(process)
        return
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    poller.poll()


def _poll_for_end(process: int) -> None:
    """Where the kernel or a sandbox has no pidfd."""
    while True:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return
        except PermissionError:
            pass  # it is there, under another user
        time.sleep(POLL_SECONDS)
