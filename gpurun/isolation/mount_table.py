"""The mounts of this process, from /proc/self/mountinfo."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

KERNEL_FILE_SYSTEMS = frozenset(
    {
        "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs",
        "efivarfs", "fusectl", "mqueue", "nsfs", "proc", "pstore", "rpc_pipefs", "securityfs",
        "selinuxfs", "sysfs", "tracefs",
    }
)  # fmt: skip
"""Windows into the kernel, not places where files are kept."""


@dataclass(frozen=True)
class Mount:
    """One line of the table. `read_only`: nothing can be written through it."""

    point: str
    kind: str
    read_only: bool


def mounts() -> dict[str, Mount]:
    """Mount point to the mount that covers it (the last one, where several are stacked)."""
    found: dict[str, Mount] = {}
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        left, _, right = line.partition(" - ")
        fields = left.split()
        kind, _, options = right.split(" ")[:3]
        point = _unescape(fields[4])
        found.pop(point, None)
        read_only = "ro" in fields[5].split(",") or "ro" in options.split(",")
        found[point] = Mount(point, kind, read_only)
    return found


def kernel_points() -> frozenset[str]:
    """Where the kernel's windows are mounted: nothing there is a file to be read or compared."""
    table = mounts().values()
    return frozenset(mount.point for mount in table if mount.kind in KERNEL_FILE_SYSTEMS)


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
