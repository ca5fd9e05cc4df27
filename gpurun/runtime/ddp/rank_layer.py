"""Requests to the view daemon of this rank's private layer (isolation/rank_layers/)."""

from __future__ import annotations

import os
import socket

from gpurun.records.messages.rank_layer_requests import (
    ADOPT,
    DELETE,
    DONE,
    HIDE,
    REFRESH,
    address_of,
)

PATIENCE_SECONDS = 10.0

AnyPath = str | bytes | os.PathLike[str]


def see_rank_zero() -> bool:
    """See all that rank 0 has written before the last collective; False if there is no layer.

    To be called right after a collective, in every rank but 0.
    """
    return _ask(REFRESH)


def delete_tree(path: AnyPath) -> bool:
    """Delete a file or folder from this rank's view in one go; False if there is no layer.

    `shutil.rmtree` fails half-way if rank 0 deletes or fills the same folder at the same time.
    """
    return _ask_about(DELETE, path)


def adopt_folder(path: AnyPath) -> bool:
    """Make a folder that rank 0 has made during the run this rank's own too; False if it cannot."""
    return _ask_about(ADOPT, path)


def hide_entry(path: AnyPath) -> bool:
    """See no longer what rank 0 has made at `path` during the run; False if it made nothing."""
    return _ask_about(HIDE, path)


def _ask_about(request: bytes, path: AnyPath) -> bool:
    above, name = os.path.split(os.path.abspath(os.fsdecode(path)))
    return bool(name) and _ask(request + os.fsencode(os.path.join(os.path.realpath(above), name)))


def _ask(what: bytes) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as daemon:
        try:
            daemon.settimeout(PATIENCE_SECONDS)
            daemon.connect(address_of(os.readlink("/proc/self/ns/mnt")))
            daemon.send(what)
            return daemon.recv(16) == DONE
        except OSError:  # the real files, or a daemon that was killed
            return False
