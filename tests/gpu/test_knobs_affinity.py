"""The process keeps to the cores near its GPU, as its bus address tells them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Gpurun
from tests.integration.knob_runs import run_under
from tests.integration.test_knobs_affinity import KNOB
from tests.sysfs_trees import write_sysfs

pytestmark = pytest.mark.gpu

SCRIPT = """
import json, os
import torch

model = torch.nn.Linear(4, 1).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(3):
    model(torch.ones(2, 4).cuda()).sum().backward()
    optimizer.step()
print(json.dumps(sorted(os.sched_getaffinity(0))))
"""


def bus_id() -> str:
    import torch

    found: Any = torch.cuda.get_device_properties(0)
    if not hasattr(found, "pci_bus_id"):
        pytest.skip("this torch does not report the GPU's bus address")
    return f"{found.pci_domain_id:04x}:{found.pci_bus_id:02x}:{found.pci_device_id:02x}.0"


def test_the_cores_near_the_gpu_are_kept(tmp_path: Path, gpurun: Gpurun) -> None:
    cores = sorted(os.sched_getaffinity(0))
    tree = write_sysfs(tmp_path / "sysfs", [cores[:1], cores[1:]], near={bus_id(): cores[1:]})
    (tmp_path / "affinity_here.py").write_text(KNOB.format(tree=str(tree)))
    (tmp_path / "gpurun.toml").write_text('knobs = ["affinity_here.py"]\n')
    run = run_under(gpurun, tmp_path, SCRIPT, {"affinity_here": "gpu_node"})
    assert run.outcomes("affinity_here") == ["applied"]
    assert run.printed == cores[1:]


def test_this_host_is_read_without_harm(tmp_path: Path, gpurun: Gpurun) -> None:
    run = run_under(gpurun, tmp_path, SCRIPT, {"cpu_affinity": "gpu_node"})
    assert len(run.outcomes("cpu_affinity")) == 1
    assert set(run.printed) <= os.sched_getaffinity(0)
