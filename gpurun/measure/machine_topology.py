"""The machine's topology from NVML and sysfs, and the parts of it that slow a training.

`sysfs` is the root of the tree, so that a recorded one can be read. Runs where no GPU is: then it
tells cores, NUMA nodes and interfaces.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from gpurun.numa import SYSFS, near, nodes
from gpurun.records.result import GpuPair, GpuTopology, Interface, Topology

ETHERNET = "1"
"""ARPHRD_ETHER in an interface's `type`."""

SLOW_MEGABITS = 25_000
"""Below this a network between nodes carries less than a tenth of what one PCIe slot does."""

PASSIVE = ("bonding_masters", "lo")


def topology(sysfs: Path = SYSFS, allowed: Collection[int] | None = None) -> Topology:
    """This machine, as far as it tells. `allowed`: the cores to count, by default our mask's."""
    from gpurun.measure.nvml import gpu_links

    cores = os.sched_getaffinity(0) if allowed is None else allowed
    found, pairs = gpu_links()
    gpus = tuple(_placed(gpu, sysfs) for gpu in found)
    whole = Topology(
        numa_cores=tuple(len(node) for node in nodes(cores, sysfs)) or (len(cores),),
        gpus=gpus,
        pairs=pairs,
        interfaces=tuple(interfaces(sysfs)),
    )
    return replace(whole, findings=(*findings(whole), *_far_cores(gpus, cores, sysfs)))


def findings(here: Topology) -> tuple[str, ...]:
    """Parts of the topology that slow a training on several GPUs or nodes, one line each."""
    return (*_pair_findings(here), *_slot_findings(here.gpus), *_network_findings(here))


def interfaces(sysfs: Path = SYSFS) -> Iterator[Interface]:
    """The interfaces that are up and lead out of the machine, InfiniBand's ports among them."""
    for folder in sorted((sysfs / "class/net").glob("*")):
        physical = (folder / "device").exists()
        if folder.name in PASSIVE or not physical or _text(folder / "type") != ETHERNET:
            continue
        if _text(folder / "operstate") != "up":
            continue
        speed = _number(folder / "speed")
        yield Interface(folder.name, "ethernet", speed or None, _node(folder / "device"))
    for port in sorted((sysfs / "class/infiniband").glob("*/ports/*")):
        if "ACTIVE" in _text(port / "state") and _text(port / "link_layer") == "InfiniBand":
            device = port.parent.parent
            gigabits = _text(port / "rate").partition(" ")[0]  # "400 Gb/sec (4X NDR)"
            speed = float(gigabits) * 1000 if gigabits.replace(".", "").isdigit() else None
            yield Interface(device.name, "infiniband", speed, _node(device / "device"))


def _placed(gpu: GpuTopology, sysfs: Path) -> GpuTopology:
    if gpu.bus_id is None:
        return gpu
    folder = sysfs / "bus/pci/devices" / gpu.bus_id
    above = folder.resolve().parent.parent.name if folder.exists() else ""
    switch = above if above.count(":") == 2 else None  # else the root complex is there already
    return replace(gpu, numa_node=_node(folder), pcie_switch=switch)


def _pair_findings(here: Topology) -> Iterator[str]:
    def named(pairs: Sequence[GpuPair]) -> str:
        shown = ", ".join(f"{p.one}-{p.other}" for p in pairs[:4])
        return shown + (f" and {len(pairs) - 4} more" if len(pairs) > 4 else "")

    barred = [p for p in here.pairs if p.peer_to_peer is False]
    if barred:
        yield (
            f"GPUs {named(barred)} cannot read each other's memory (P2P): gradients go through the"
            " host's memory"
        )
    across = [
        p for p in here.pairs if not p.nvlink and p not in barred and p.path == "across sockets"
    ]
    if across:
        yield f"GPUs {named(across)} have no NVLink and lie on two sockets: the slowest path there"
    plain = [p for p in here.pairs if p.nvlink is False and p not in barred and p not in across]
    if plain:
        yield f"GPUs {named(plain)} have no NVLink: gradients share PCIe with the data"
    links = {gpu.nvlinks for gpu in here.gpus if gpu.nvlinks is not None}
    if len(links) > 1:
        counts = ", ".join(str(gpu.nvlinks) for gpu in here.gpus)
        yield f"NVLinks that are up differ among the GPUs ({counts}): the fewest set the pace"


def _slot_findings(gpus: Sequence[GpuTopology]) -> Iterator[str]:
    for place, gpu in enumerate(gpus):
        width, most = gpu.pcie_width, gpu.pcie_max_width
        if width is not None and most is not None and width < most:
            yield f"GPU {place} uses {width} of {most} PCIe lanes: batches are copied slower"


def _network_findings(here: Topology) -> Iterator[str]:
    speeds = [i.megabits_per_second for i in here.interfaces if i.megabits_per_second is not None]
    if here.gpus and speeds and max(speeds) < SLOW_MEGABITS:
        yield (
            f"the fastest interface has {max(speeds) / 1000:g} Gbit/s: several nodes would wait for"
            " each other's gradients"
        )


def _far_cores(gpus: Sequence[GpuTopology], cores: Collection[int], sysfs: Path) -> Iterator[str]:
    for place, gpu in enumerate(gpus):
        local = near(gpu.bus_id, sysfs) if gpu.bus_id else set()
        if local and local.isdisjoint(cores):
            yield (
                f"none of the cores that may be used is near GPU {place} (NUMA node"
                f" {gpu.numa_node}): launches and copies cross between sockets"
            )


def _node(device: Path) -> int | None:
    """The NUMA node of a device; the kernel's -1 means that it does not know."""
    number = _number(device / "numa_node")
    return None if number is None or number < 0 else int(number)


def _number(path: Path) -> float | None:
    try:
        number = float(_text(path))
    except ValueError:
        return None
    return number if number >= 0 else None  # -1: no such thing is known


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""  # some attributes cannot be read where the link is down
