"""How a rank's process reaches the keeper of its private layer: an address without a file.

The address is made of the mount namespace, so all processes of the rank know it, and only they.
"""

from __future__ import annotations

ASK = b"refresh"
DONE = b"done"


def address_of(mounts: str) -> str:
    """The abstract Unix address for a namespace as `/proc/self/ns/mnt` names it."""
    return f"\0gpurun-layer-{mounts}"
