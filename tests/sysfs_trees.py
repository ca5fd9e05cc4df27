"""The part of sysfs that says where cores lie, written as a tree of files for a made-up host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path


def write_sysfs(
    root: Path,
    nodes: Iterable[Iterable[int]],
    siblings: Iterable[Iterable[int]] = (),
    near: Mapping[str, Iterable[int]] | None = None,
) -> Path:
    """A host by the cores of its NUMA nodes, those that share a core, and those near PCI devices.

    Cores that share nothing are not among `siblings`.
    """
    for number, cores in enumerate(nodes):
        _write(root / f"devices/system/node/node{number}/cpulist", cores)
        for cpu in cores:
            _write(root / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", [cpu])
    for group in siblings:
        for cpu in group:
            _write(root / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", group)
    for bus_id, cores in (near or {}).items():
        _write(root / "bus/pci/devices" / bus_id / "local_cpulist", cores)
    return root


def _write(path: Path, cores: Iterable[int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(",".join(map(str, cores)) + "\n")
