"""A process keeps to the cores of one NUMA node, with its threads and workers, unless it chose."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import Gpurun
from tests.integration.knob_runs import KnobRun, run_under
from tests.sysfs_trees import write_sysfs

KNOB = """
from pathlib import Path
from gpurun.knobs.cpu_affinity import CpuAffinity

class OnThisHost(CpuAffinity):
    name = "affinity_here"
    effect = CpuAffinity.effect

    def __init__(self):
        super().__init__(Path({tree!r}))
"""
SCRIPT = """
import json, os, threading
import torch
from torch.utils.data import DataLoader, Dataset

OWN = None
started, ended = threading.Event(), threading.Event()

class Cores(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        own = os.sched_getaffinity(0)
        return torch.tensor([float(cpu in own) for cpu in range(max(CORES) + 1)])

def cores_of(row):
    return [cpu for cpu, there in enumerate(row.tolist()) if there]

def earlier_thread():
    started.set()
    ended.wait()
    masks.append(sorted(os.sched_getaffinity(0)))

CORES = sorted(os.sched_getaffinity(0))
masks = []
if OWN is not None:
    os.sched_setaffinity(0, CORES[:OWN])
thread = threading.Thread(target=earlier_thread)
thread.start()
started.wait()
early = iter(DataLoader(Cores(), num_workers=1, persistent_workers=True))
next(early)
model = torch.nn.Linear(max(CORES) + 1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for row in DataLoader(Cores(), num_workers=1):
    model(row).sum().backward()
    optimizer.step()
ended.set()
thread.join()
for last in early:
    pass
print(json.dumps({
    "before": CORES, "main": sorted(os.sched_getaffinity(0)), "thread": masks[0],
    "late worker": cores_of(row[0]), "early worker": cores_of(last[0]),
    "threads": torch.get_num_threads(),
}))
"""


@pytest.fixture
def cores() -> list[int]:
    found = sorted(os.sched_getaffinity(0))
    if len(found) < 2:
        pytest.skip("needs two cores")
    return found


def train(
    gpurun: Gpurun,
    folder: Path,
    nodes: list[list[int]],
    value: str = "one_node",
    script: str = SCRIPT,
    siblings: tuple[list[int], ...] = (),
    env: dict[str, str] | None = None,
) -> KnobRun:
    """Train on a host that says it has these NUMA nodes."""
    tree = write_sysfs(folder / "sysfs", nodes, siblings)
    (folder / "affinity_here.py").write_text(KNOB.format(tree=str(tree)))
    (folder / "gpurun.toml").write_text('knobs = ["affinity_here.py"]\n')
    return run_under(gpurun, folder, script, {"affinity_here": value}, env=env)


def test_the_process_its_threads_and_its_workers_keep_to_one_node(
    tmp_path: Path, gpurun: Gpurun, cores: list[int]
) -> None:
    half = len(cores) // 2
    run = train(gpurun, tmp_path, [cores[:half], cores[half:]])
    assert run.knobs == [("affinity_here", "applied", f"{half} of {len(cores)} cores")]
    for who in ("main", "thread", "late worker", "early worker"):
        assert run.printed[who] == cores[:half], who
    assert run.printed["before"] == cores
    assert run.printed["threads"] <= half


def test_ranks_take_the_nodes_in_turn(tmp_path: Path, gpurun: Gpurun, cores: list[int]) -> None:
    run = train(gpurun, tmp_path, [cores[:1], cores[1:]], env={"LOCAL_RANK": "3"})
    assert run.printed["main"] == cores[1:]


def test_one_thread_of_each_core_is_used(tmp_path: Path, gpurun: Gpurun, cores: list[int]) -> None:
    run = train(gpurun, tmp_path, [cores], "physical_cores", siblings=(cores[:2],))
    assert run.printed["main"] == [cores[0], *cores[2:]]


@pytest.mark.parametrize("value", ["one_node", "physical_cores", "gpu_node", "every_core"])
def test_a_host_of_one_node_is_left_alone(
    tmp_path: Path, gpurun: Gpurun, cores: list[int], value: str
) -> None:
    run = train(gpurun, tmp_path, [cores], value)
    assert run.printed["main"] == run.printed["late worker"] == cores
    assert "applied" not in run.outcomes("affinity_here")


def test_a_script_that_chooses_its_cores_wins(
    tmp_path: Path, gpurun: Gpurun, cores: list[int]
) -> None:
    own = SCRIPT.replace("OWN = None", "OWN = 1")
    first = own.replace(
        "import torch\n",
        "os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])\nimport torch\n",
        1,
    )
    for script, chosen in ((own, cores[:1]), (first, cores[-1:])):
        run = train(gpurun, tmp_path, [cores[:1], cores[1:]], script=script)
        assert run.printed["main"] == run.printed["early worker"] == chosen
        assert run.outcomes("affinity_here") == ["skipped"]
