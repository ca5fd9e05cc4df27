"""Where cores lie, as a recorded host says, and what the affinity knob proposes on it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpurun.knobs.api import Skip
from gpurun.knobs.cpu_affinity import CpuAffinity
from gpurun.numa import cores_of, near, nodes, one_thread_a_core
from tests.sysfs_trees import write_sysfs
from tests.unit.knob_facts import facts, gpu_facts

TWO_SOCKETS = {
    "devices/system/node/node0/cpulist": "0-3,8-11\n",
    "devices/system/node/node1/cpulist": "4-7,12-15\n",
    "bus/pci/devices/0000:1b:00.0/local_cpulist": "0-3,8-11\n",
    "bus/pci/devices/0000:dc:00.0/local_cpulist": "4-7,12-15\n",
    **{
        f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list": f"{cpu % 8},{cpu % 8 + 8}\n"
        for cpu in range(16)
    },
}
"""As Linux writes it on a host of two sockets with four cores of two threads each."""


@pytest.fixture
def two_sockets(tmp_path: Path) -> Path:
    for name, text in TWO_SOCKETS.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_cores_are_grouped_by_their_node(two_sockets: Path) -> None:
    assert nodes(range(16), two_sockets) == [
        {0, 1, 2, 3, 8, 9, 10, 11},
        {4, 5, 6, 7, *range(12, 16)},
    ]


def test_the_mask_bounds_the_nodes(two_sockets: Path) -> None:
    assert nodes({2, 3, 4}, two_sockets) == [{2, 3}, {4}]
    assert nodes({12, 13}, two_sockets) == [{12, 13}]


def test_nodes_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    tree = write_sysfs(tmp_path, [[cpu] for cpu in range(12)])
    assert nodes(range(12), tree) == [{cpu} for cpu in range(12)]


def test_one_thread_stands_for_each_core(two_sockets: Path) -> None:
    assert one_thread_a_core(range(16), two_sockets) == set(range(8))
    assert one_thread_a_core({1, 9, 12}, two_sockets) == {1, 12}


def test_a_host_that_tells_nothing_keeps_all_its_cores(tmp_path: Path) -> None:
    assert one_thread_a_core({0, 1}, tmp_path) == {0, 1}
    assert nodes({0, 1}, tmp_path) == []


def test_the_cores_near_a_gpu_are_found_by_its_bus_address(two_sockets: Path) -> None:
    assert near("0000:DC:00.0", two_sockets) == {4, 5, 6, 7, 12, 13, 14, 15}
    assert near("0000:99:00.0", two_sockets) == set()


@pytest.mark.parametrize("text", ["", "\n", "none\n"])
def test_a_list_without_numbers_is_empty(tmp_path: Path, text: str) -> None:
    (tmp_path / "cpulist").write_text(text)
    assert cores_of(tmp_path / "cpulist") == set()


@pytest.fixture
def mask() -> list[int]:
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("needs two cores")
    return cores


def test_several_nodes_are_a_ground(tmp_path: Path, mask: list[int]) -> None:
    knob = CpuAffinity(write_sysfs(tmp_path, [mask[:1], mask[1:]]))
    assert knob.candidates(gpu_facts()) == ["gpu_node"]
    assert knob.candidates(facts()) == ["one_node"]


def test_two_threads_of_a_core_are_one_for_models_on_the_cpu(
    tmp_path: Path, mask: list[int]
) -> None:
    knob = CpuAffinity(write_sysfs(tmp_path, [mask], siblings=[mask]))
    assert knob.candidates(facts()) == ["physical_cores"]
    assert isinstance(knob.candidates(gpu_facts()), Skip)


def test_nothing_is_tried_where_the_mask_is_of_one_node(tmp_path: Path, mask: list[int]) -> None:
    others = range(max(mask) + 1, max(mask) + 5)
    knob = CpuAffinity(write_sysfs(tmp_path, [mask, others]))
    for ground in (facts(), gpu_facts()):
        skip = knob.candidates(ground)
        assert isinstance(skip, Skip)
        assert "one NUMA node" in skip.reason


def test_threads_that_somebody_has_placed_stay(
    tmp_path: Path, mask: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_PROC_BIND", "true")
    knob = CpuAffinity(write_sysfs(tmp_path, [mask[:1], mask[1:]]))
    assert knob.candidates(facts()) == Skip("OMP_PROC_BIND is set already")
