"""Links between GPUs, as NVML reports them. The caller hands over pynvml."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from gpurun.measure.visible_gpus import Gpu, ask, text
from gpurun.records.topology import GpuPair, GpuTopology

P2P_READ, P2P_NVLINK = 0, 2
"""nvmlGpuP2PCapsIndex_t; pynvml's own constant for the first is a tuple by mistake."""

PATHS = {
    0: "one board",
    10: "one PCIe switch",
    20: "several PCIe switches",
    30: "host bridge",
    40: "NUMA node",
    50: "across sockets",
}
"""nvmlGpuTopologyLevel_t."""


def links(nvml: Any, gpus: Sequence[Gpu]) -> tuple[tuple[GpuTopology, ...], tuple[GpuPair, ...]]:
    """The topology of each GPU, without the facts from sysfs, and of each pair."""
    places = tuple(_gpu_topology(nvml, gpu) for gpu in gpus)
    pairs = tuple(_pair(nvml, gpus, *pair) for pair in combinations(range(len(gpus)), 2))
    return places, pairs


def _gpu_topology(nvml: Any, gpu: Gpu) -> GpuTopology:
    def told(query: str) -> int | None:
        answer = ask(getattr(nvml, query, None), gpu.handle)
        return None if answer is None else int(answer)

    return GpuTopology(
        index=gpu.cuda_index,
        name=gpu.name,
        bus_id=_bus_id(ask(getattr(nvml, "nvmlDeviceGetPciInfo", None), gpu.handle)),
        numa_node=None,
        pcie_switch=None,
        pcie_width=told("nvmlDeviceGetCurrPcieLinkWidth"),
        pcie_max_width=told("nvmlDeviceGetMaxPcieLinkWidth"),
        nvlinks=_links_up(nvml, gpu.handle),
    )


def _bus_id(info: Any) -> str | None:
    """The address as sysfs writes it: NVML's has eight digits of domain, sysfs' has four."""
    name = None if info is None else text(info.busId)
    return None if name is None else name[-12:].lower()


def _links_up(nvml: Any, handle: Any) -> int | None:
    """NVLinks that are up: 0 for a GPU without any, None where NVML does not tell."""
    query = getattr(nvml, "nvmlDeviceGetNvLinkState", None)
    if query is None:
        return None
    states = [
        ask(query, handle, link) for link in range(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18))
    ]
    return sum(int(state == 1) for state in states)


def _pair(nvml: Any, gpus: Sequence[Gpu], one: int, other: int) -> GpuPair:
    both = gpus[one].handle, gpus[other].handle
    level = ask(getattr(nvml, "nvmlDeviceGetTopologyCommonAncestor", None), *both)

    def allowed(capability: int) -> bool | None:
        status = ask(getattr(nvml, "nvmlDeviceGetP2PStatus", None), *both, capability)
        return None if status is None else status == 0

    return GpuPair(one, other, PATHS.get(level), allowed(P2P_READ), allowed(P2P_NVLINK))
