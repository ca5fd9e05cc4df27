"""The topology of a made-up host, by a stand-in for NVML and a tree like sysfs, and what hurts."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpurun.doctor.system_checks import topology_checks
from gpurun.measure.machine_topology import interfaces, topology
from gpurun.records.command_reports import State
from gpurun.records.result import Topology
from tests.sysfs_trees import write_sysfs


class StandIn:
    """pynvml on a host of GPUs by bus address; what one does not set is as on an HGX board."""

    NVML_NVLINK_MAX_LINKS = 18

    def __init__(self, *bus_ids: str, level: int = 50, nvlinks: int = 18, p2p: int = 0) -> None:
        self.bus_ids, self.level, self.nvlinks, self.p2p = bus_ids, level, nvlinks, p2p
        self.width = 16

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)  # what an old driver's library lacks

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return len(self.bus_ids)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle}"

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return SimpleNamespace(total=1)

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return 9, 0

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:
        return SimpleNamespace(busId=f"0000{self.bus_ids[handle].upper()}".encode())

    def nvmlDeviceGetCurrPcieLinkWidth(self, handle: int) -> int:
        return self.width

    def nvmlDeviceGetMaxPcieLinkWidth(self, handle: int) -> int:
        return 16

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:
        if link >= self.nvlinks:
            raise RuntimeError("invalid argument")
        return 1

    def nvmlDeviceGetTopologyCommonAncestor(self, one: int, other: int) -> int:
        return self.level

    def nvmlDeviceGetP2PStatus(self, one: int, other: int, capability: int) -> int:
        return self.p2p if capability == 0 else int(not self.nvlinks)


BUSES = {"0000:1b:00.0": (0, 1), "0000:9b:00.0": (2, 3)}


def host(root: Path, networks: Mapping[str, str] | None = None) -> Path:
    """Two sockets of two cores, a GPU behind a switch on each; `networks`: speed by name."""
    write_sysfs(root, [(0, 1), (2, 3)])
    (root / "bus/pci/devices").mkdir(parents=True)
    for node, (bus_id, cores) in enumerate(BUSES.items()):
        bridges = f"devices/pci0000:{bus_id[5:7]}/0000:{bus_id[5:7]}:01.0/0000:aa:0{node}.0"
        device = root / bridges / bus_id
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{node}\n")
        (device / "local_cpulist").write_text(",".join(map(str, cores)) + "\n")
        (root / "bus/pci/devices" / bus_id).symlink_to(device)
    for name, speed in (networks or {}).items():
        folder = root / "class/net" / name
        (folder / "device").mkdir(parents=True)
        (folder / "device/numa_node").write_text("-1\n")
        for attribute, text in (("type", "1"), ("operstate", "up"), ("speed", speed)):
            (folder / attribute).write_text(text + "\n")
    return root


def seen(nvml: StandIn, sysfs: Path, monkeypatch: pytest.MonkeyPatch, cores: Any) -> Topology:
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return topology(sysfs, cores)


def test_gpus_with_nvlink_across_sockets_hurt_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = seen(StandIn(*BUSES), host(tmp_path, {"eth0": "400000"}), monkeypatch, range(4))
    assert [gpu.bus_id for gpu in here.gpus] == list(BUSES)
    assert [gpu.numa_node for gpu in here.gpus] == [0, 1]
    assert [gpu.pcie_switch for gpu in here.gpus] == ["0000:1b:01.0", "0000:9b:01.0"]
    assert [gpu.nvlinks for gpu in here.gpus] == [18, 18]
    (pair,) = here.pairs
    assert (pair.path, pair.peer_to_peer, pair.nvlink) == ("across sockets", True, True)
    assert here.numa_cores == (2, 2)
    assert here.findings == ()
    checks = {check.what: check for check in topology_checks(here)}
    assert checks["GPU pairs"].found == "0-1: NVLink, P2P"
    assert checks["network"].found == "eth0 400 Gbit/s"


@pytest.mark.parametrize(
    ("change", "finding"),
    [
        ({"nvlinks": 0}, "GPUs 0-1 have no NVLink and lie on two sockets"),
        ({"nvlinks": 0, "level": 10}, "GPUs 0-1 have no NVLink: gradients share PCIe"),
        ({"p2p": 1}, "cannot read each other's memory"),
    ],
)
def test_what_hurts_between_gpus_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, int], finding: str
) -> None:
    here = seen(StandIn(*BUSES, **change), host(tmp_path), monkeypatch, range(4))
    (line,) = here.findings
    assert finding in line
    limited = [check for check in topology_checks(here) if check.state is State.LIMITED]
    assert [bool(check.cost) for check in limited] == [True]


def test_lanes_far_cores_and_a_slow_network_hurt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml = StandIn(*BUSES)
    nvml.width = 8
    here = seen(nvml, host(tmp_path, {"eth0": "1000"}), monkeypatch, {0, 1})
    lanes, more_lanes, network, far = here.findings
    assert "GPU 0 uses 8 of 16 PCIe lanes" in lanes
    assert "GPU 1" in more_lanes
    assert "1 Gbit/s" in network
    assert "near GPU 1 (NUMA node 1)" in far


def test_an_old_driver_and_a_bare_sysfs_leave_gaps_and_no_claims(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Old(StandIn):
        nvmlDeviceGetP2PStatus = nvmlDeviceGetNvLinkState = None  # type: ignore[assignment]
        nvmlDeviceGetTopologyCommonAncestor = None  # type: ignore[assignment]

    here = seen(Old(*BUSES), tmp_path, monkeypatch, {0, 1, 2})
    assert {gpu.nvlinks for gpu in here.gpus} == {None}
    assert here.pairs[0].path is here.pairs[0].peer_to_peer is here.pairs[0].nvlink is None
    assert (here.numa_cores, here.findings) == ((3,), ())


def test_without_a_gpu_cores_and_interfaces_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = seen(StandIn(), host(tmp_path, {"eth0": "-1"}), monkeypatch, range(4))
    assert (here.gpus, here.pairs, here.numa_cores, here.findings) == ((), (), (2, 2), ())
    assert here.interfaces[0].megabits_per_second is None


def test_infiniband_ports_count_and_links_that_are_down_do_not(tmp_path: Path) -> None:
    host(tmp_path, {"eth0": "1000", "eth1": "1000"})
    (tmp_path / "class/net/eth1/operstate").write_text("down\n")
    for port, state in ((1, "4: ACTIVE"), (2, "1: DOWN")):
        folder = tmp_path / f"class/infiniband/mlx5_0/ports/{port}"
        folder.mkdir(parents=True)
        (folder / "state").write_text(state)
        (folder / "link_layer").write_text("InfiniBand")
        (folder / "rate").write_text("400 Gb/sec (4X NDR)")
    found = [(i.name, i.megabits_per_second) for i in interfaces(tmp_path)]
    assert found == [("eth0", 1000), ("mlx5_0", 400_000)]
