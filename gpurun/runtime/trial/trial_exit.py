"""The end of a trial: every rank at the same step, and the processes that started them with it."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from gpurun.records.frames import transparent
from gpurun.runtime.core.patching import replace
from gpurun.runtime.core.step_agreement import rank_and_size, ranks_on_this_host

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

PEERS_SECONDS = 5.0
"""The longest that ranks wait for each other's records."""
WRITE_SECONDS = 30.0
"""The longest that writing the record may take; then the process ends without it."""
POLL_SECONDS = 0.02

_LEAVING = threading.Lock()
"""Taken by the one thread that ends the process, and never given back."""


def await_peers(control: Path) -> None:
    """Wait until every rank of this host has written its record: one that misses a peer raises."""
    rank, size = rank_and_size()
    here = ranks_on_this_host(size)
    if here == 1:
        return
    control.mkdir(parents=True, exist_ok=True)
    (control / f"stopped-{rank}").touch()
    deadline = time.monotonic() + PEERS_SECONDS
    while time.monotonic() < deadline:
        if len(list(control.glob("stopped-*"))) >= here:
            return
        time.sleep(POLL_SECONDS)


def end_at_once(write_exit: Callable[[], None], control: Path) -> None:
    """Write the record and leave: no `except` or `finally` of the script may see or delay it."""
    timer = threading.Timer(WRITE_SECONDS, os._exit, [0])
    timer.daemon = True
    try:
        timer.start()
    except RuntimeError:  # no memory for a thread: then without a limit
        pass
    try:
        from multiprocessing import parent_process

        if parent_process() is not None:
            control.mkdir(parents=True, exist_ok=True)
            (control / "ended").touch()
        write_exit()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)


def end_with_children(control: Path) -> None:
    """A process whose children train (mp.spawn) ends when they have ended their trial."""
    from multiprocessing import process

    ended = control / "ended"
    replace(process.BaseProcess, "start", lambda original: _watch_start(original, ended))
    replace(process.BaseProcess, "join", lambda original: _watch_join(original, ended))


def _watch_join(original: Callable[..., None], ended: Path) -> Callable[..., None]:
    @transparent
    def join(child: BaseProcess, timeout: float | None = None) -> None:
        original(child, timeout)
        if not child.daemon and ended.exists():
            _follow(ended)  # the script must not go on as if its children had trained

    return join


def _watch_start(original: Callable[..., None], ended: Path) -> Callable[..., None]:
    watching: list[int] = []

    @transparent
    def start(child: BaseProcess) -> None:
        if not child.daemon and os.getpid() not in watching:  # loader workers are daemons
            watching.append(os.getpid())
            threading.Thread(target=_follow, args=(ended,), daemon=True).start()
        original(child)

    return start


def _follow(ended: Path) -> None:
    from multiprocessing import connection, process

    while not ended.exists():
        time.sleep(POLL_SECONDS)
    deadline = time.monotonic() + PEERS_SECONDS
    children = [p.sentinel for p in list(process._children) if not p.daemon]  # type: ignore[attr-defined]
    while children and time.monotonic() < deadline:
        gone = connection.wait(children, timeout=max(deadline - time.monotonic(), 0))
        children = [sentinel for sentinel in children if sentinel not in gone]
    with _LEAVING:  # the watching thread and a join come here together
        sys.stdout.flush()
        os._exit(0)
