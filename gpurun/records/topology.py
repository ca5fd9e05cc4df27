"""The topology of a machine's devices: GPUs, links between them, interfaces to other machines."""

from __future__ import annotations

from gpurun.records.record import record


@record
class GpuTopology:
    """Where a GPU sits. None: unknown.

    `index`: CUDA's. `pcie_switch`: the bus address of the PCIe bridge two above it, which GPUs
    behind one switch share. `pcie_width`: lanes in use. `nvlinks`: links that are up.
    """

    index: int | None
    name: str
    bus_id: str | None
    numa_node: int | None
    pcie_switch: str | None
    pcie_width: int | None
    pcie_max_width: int | None
    nvlinks: int | None


@record
class GpuPair:
    """Two GPUs, by their places in the list. `path`: the longest way that PCIe traffic takes.

    "one board", "one PCIe switch", "several PCIe switches", "host bridge", "NUMA node" or "across
    sockets". `peer_to_peer`: whether one may read the other's memory; `nvlink`: over NVLink. None:
    unknown.
    """

    one: int
    other: int
    path: str | None
    peer_to_peer: bool | None
    nvlink: bool | None


@record
class Interface:
    """A network interface that is up. `kind`: "ethernet" or "infiniband"."""

    name: str
    kind: str
    megabits_per_second: float | None
    numa_node: int | None


@record
class Topology:
    """The machine. `numa_cores`: cores that this process may use, of each NUMA node with any.

    `findings`: its bottlenecks, one line each.
    """

    numa_cores: tuple[int, ...]
    gpus: tuple[GpuTopology, ...] = ()
    pairs: tuple[GpuPair, ...] = ()
    interfaces: tuple[Interface, ...] = ()
    findings: tuple[str, ...] = ()
