"""The launcher's message to a sandbox's supervisor: one JSON line on its standard input."""

from __future__ import annotations

from dataclasses import dataclass

from gpurun.isolation.isolation_mode import Mode


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
