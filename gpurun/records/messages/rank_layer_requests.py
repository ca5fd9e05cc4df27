"""The address of the view daemon of a rank's private layer, without a file.

The address is made of the mount namespace, so all processes of the rank know it, and only they.
"""

from __future__ import annotations

REFRESH = b"refresh"
DELETE = b"delete "
ADOPT = b"adopt "
"""Make a folder that rank 0 has made the rank's own too."""
HIDE = b"hide "
"""Let the rank not see a file or link that rank 0 has made.

These three are followed by an absolute path without links above its last name.
"""

DONE = b"done"
REFUSED = b"refused"
LONGEST = 8192
"""Bytes of a request."""


def address_of(mounts: str) -> str:
    """The abstract Unix address for a namespace as `/proc/self/ns/mnt` names it."""
    return f"\0gpurun-layer-{mounts}"
