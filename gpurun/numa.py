"""Where cores lie: NUMA nodes, hardware threads of one core, and what is near a PCI device.

Read from sysfs (`Documentation/ABI/stable/sysfs-devices-node` and `sysfs-devices-system-cpu` of the
kernel). Every function takes the root of the tree, so that a recorded one can be read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

SYSFS = Path("/sys")


def nodes(allowed: Collection[int], sysfs: Path = SYSFS) -> list[set[int]]:
    """The allowed cores of each NUMA node that has any, by number of the node."""
    folders = (sysfs / "devices/system/node").glob("node[0-9]*")
    lists = (folder / "cpulist" for folder in sorted(folders, key=lambda x: int(x.name[4:])))
    found = (cores_of(path).intersection(allowed) for path in lists)
    return [cores for cores in found if cores]


def one_thread_a_core(allowed: Collection[int], sysfs: Path = SYSFS) -> set[int]:
    """The first allowed hardware thread of each physical core; all threads if the cores are
    unknown."""
    cpus = sysfs / "devices/system/cpu"
    chosen: set[int] = set()
    for cpu in sorted(allowed):
        siblings = cores_of(cpus / f"cpu{cpu}/topology/thread_siblings_list")
        if chosen.isdisjoint(siblings):
            chosen.add(cpu)
    return chosen


def near(bus_id: str, sysfs: Path = SYSFS) -> set[int]:
    """The cores of the NUMA node of a PCI device ("0000:1b:00.0"); empty if unknown."""
    return cores_of(sysfs / "bus/pci/devices" / bus_id.lower() / "local_cpulist")


def cores_of(path: Path) -> set[int]:
    """The numbers in a file that lists cores ("0-3,8"); empty where it cannot be read."""
    try:
        return set(_numbers(path.read_text()))
    except (OSError, ValueError):
        return set()


def _numbers(text: str) -> Iterator[int]:
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        if first:
            yield from range(int(first), int(last or first) + 1)
