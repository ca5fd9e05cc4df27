"""The process beside a rank that keeps its view of rank 0's files up to date.

It refreshes the view every quarter of a second, and at once when the rank asks for it: at a moment
when rank 0 is known to have done its part (after a collective), the answer then means that all
which rank 0 wrote before is seen. It ends with the rank's process.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time

from gpurun.isolation.rank_layers.rank_view import RankView
from gpurun.records.messages.rank_layer_requests import (
    ADOPT,
    DELETE,
    DONE,
    HIDE,
    LONGEST,
    REFUSED,
    address_of,
)

READY = b"r"
INTERVAL_SECONDS = 0.25
MOST_SHARE = 0.01
"""Of one core, for refreshing."""

ANSWER_SECONDS = 1.0
"""So long somebody who has connected may take to say what for."""


def keep(process: int, view: RankView, channel: socket.socket) -> None:
    """Serve the rank that is `process`, which tells its mount namespace through `channel`."""
    rank = os.pidfd_open(process)
    mounts = channel.recv(256).decode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(address_of(mounts))
        server.listen()
        channel.send(READY)
        channel.close()
        _serve(rank, server, view, mounts)


def _serve(rank: int, server: socket.socket, view: RankView, mounts: str) -> None:
    poller = select.poll()
    for descriptor in (rank, server.fileno()):
        poller.register(descriptor, select.POLLIN)
    due = time.monotonic() + INTERVAL_SECONDS
    while True:
        events = poller.poll(max(0.0, due - time.monotonic()) * 1000)
        ready = {descriptor for descriptor, _ in events}
        if rank in ready:
            return
        if server.fileno() in ready:
            _answer_one(server, view, mounts)
        if time.monotonic() >= due:
            due = time.monotonic() + max(INTERVAL_SECONDS, _refresh(view) / MOST_SHARE)


def _answer_one(server: socket.socket, view: RankView, mounts: str) -> None:
    with contextlib.suppress(OSError):
        connection, _ = server.accept()
        with connection:
            if not _is_of_the_rank(connection, mounts):
                return
            connection.settimeout(ANSWER_SECONDS)
            request = connection.recv(LONGEST)
            done = True
            if request.startswith(DELETE):
                done = view.delete(os.fsdecode(request.removeprefix(DELETE)))
            elif request.startswith(ADOPT):
                done = view.adopt(os.fsdecode(request.removeprefix(ADOPT)))
            elif request.startswith(HIDE):
                done = view.hide_of_this_run(os.fsdecode(request.removeprefix(HIDE)))
            elif request:
                _refresh(view, settled=True)
            connection.send(DONE if done else REFUSED)


def _is_of_the_rank(connection: socket.socket, mounts: str) -> bool:
    """True for this user's processes in the rank's mount namespace: everybody sees the address."""
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    process, user, _ = struct.unpack("3i", told)
    return user == os.geteuid() and os.readlink(f"/proc/{process}/ns/mnt") == mounts


def _refresh(view: RankView, *, settled: bool = False) -> float:
    """Seconds of the processor that it took."""
    before = time.process_time()
    with contextlib.suppress(OSError):  # files come and go under our hands; the next time then
        view.refresh(settled=settled)
    return time.process_time() - before
