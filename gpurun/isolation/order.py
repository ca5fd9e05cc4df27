"""What the launcher asks of a box's warden: one JSON line on its standard input."""

from __future__ import annotations

from dataclasses import dataclass

from gpurun.isolation.mode import Mode


@dataclass(frozen=True)
class BoxOrder:
    """`scratch` exists and is the box's own. `layers`: later ones lie on top of earlier ones.

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
"""Folder of the scratch on which the warden mounts a tmpfs for upper layers not on disk."""

ROOT = "root"
"""Folder of the scratch on which the shim builds the new root."""

UPPERS = "uppers"
"""Folder (of the scratch and of `MEMORY`) with one folder for each overlay."""
