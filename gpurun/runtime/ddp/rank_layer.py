"""Requests to the daemon that keeps this rank's private layer of files (isolation/)."""

from __future__ import annotations

import os
import socket

from gpurun.records.messages.rank_layer_requests import DELETE, DONE, REFRESH, address_of

PATIENCE_SECONDS = 10.0


def see_rank_zero() -> bool:
    """See all that rank 0 has written before the last collective; False if there is no layer.

    To be called right after a collective, in every rank but 0.
    """
    return _ask(REFRESH)


def delete_tree(path: str | os.PathLike[str]) -> bool:
    """Delete a file or folder from this rank's view in one go; False if there is no layer.

    `shutil.rmtree` fails half-way if rank 0 deletes or fills the same folder at the same time.
    """
    above, name = os.path.split(os.path.abspath(os.fspath(path)))
    if not name:
        return False
    return _ask(DELETE + os.fsencode(os.path.join(os.path.realpath(above), name)))


def _ask(what: bytes) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as keeper:
        try:
            keeper.settimeout(PATIENCE_SECONDS)
            keeper.connect(address_of(os.readlink("/proc/self/ns/mnt")))
            keeper.send(what)
            return keeper.recv(16) == DONE
        except OSError:  # the real files, or a keeper that was killed
            return False
