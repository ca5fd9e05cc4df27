"""The modes of isolation, and the spec of a supervisor."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Mode(enum.Enum):
    """OVERLAY: every write is seen by the script and thrown away. LANDLOCK: the script works on a
    copy of its folder and writes elsewhere fail. IN_PLACE: no protection, by the user's consent.
    """

    OVERLAY = "overlay"
    LANDLOCK = "landlock"
    IN_PLACE = "in place"


@dataclass(frozen=True)
class SupervisorSpec:
    """`scratch` exists and is the sandbox's own. `layers`: later ones lie on top of earlier ones.

    `terminal` and `report` are numbers of inherited file descriptors. `familiar` are folders in
    which the script is likely to write.
    """

    mode: Mode
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str
    writable: tuple[str, ...]
    layers: tuple[str, ...]
    familiar: tuple[str, ...]
    scratch: str
    terminal: int
    report: int


MEMORY = "memory"
"""Folder of the scratch on which the supervisor mounts a tmpfs for upper layers not on disk."""

ROOT = "root"
"""Folder of the scratch on which the init process builds the new root."""

UPPERS = "uppers"
"""Folder (of the scratch and of `MEMORY`) with one folder for each overlay."""

COPIES = "copies"
"""Folder of the scratch with copies of files that no overlay can have as they are."""
