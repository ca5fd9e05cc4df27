"""A script that runs out of memory at its own batch trains after `--optimize`, at that batch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import Gpurun

pytestmark = pytest.mark.forked

SCRIPT = """
import os, resource, sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
torch.set_num_threads(1)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.inner = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.Linear(128, 32))

    def forward(self, x):
        return x + self.inner(self.norm(x))

def main(megabytes):
    model = nn.Sequential(*[Block() for _ in range(16)], nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(327680, 32), torch.randint(0, 10, (327680,)))
    with open("/proc/self/status") as status:
        used = next(int(line.split()[1]) << 10 for line in status if line.startswith("VmData"))
    if megabytes:
        resource.setrlimit(resource.RLIMIT_DATA, (used + (megabytes << 20), -1))
    sizes = set()
    for x, y in DataLoader(data, batch_size=8192, shuffle=True):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        sizes.add(len(x))
    print(f"batch {sizes}, loss {loss.item():.5f}")

if __name__ == "__main__":
    main(int(sys.argv[1]))
"""


STEADY = {"MALLOC_MMAP_THRESHOLD_": "1048576", "MALLOC_ARENA_MAX": "1"}
"""What is freed goes back at once: resident memory is what the training holds."""


@pytest.mark.slow  # quick twin: unit/test_recorded_tuning.py
def test_it_is_made_to_fit_at_its_own_batch_and_trains_the_same(
    tmp_path: Path, gpurun: Gpurun
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    whole = gpurun("train.py", "0", env=STEADY)
    assert whole.returncode == 0, whole.stderr.decode()
    too_much = gpurun("train.py", "130", env=STEADY)
    assert too_much.returncode == 1
    assert b"can't allocate memory" in too_much.stderr

    options = ("--optimize", "--budget", "60s", "--max-trials", "8", "--json", "found.json")
    done = gpurun(*options, "train.py", "130", env=STEADY, timeout=800)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == whole.stdout, "the same batch, the same loss"

    report = json.loads((tmp_path / "found.json").read_text())
    assert report["verdict"] in ("fits", "faster")
    made_to_fit = report["baseline"]["knobs"]
    assert made_to_fit
    assert made_to_fit.items() <= report["chosen"]["knobs"].items()
    assert report["trials"][0]["status"] == "oom"
    fitting = [row for row in report["ladder"] if row["stage"] == "memory"]
    assert (
        made_to_fit.items() <= {k: v for row in fitting for k, v in row["changes"].items()}.items()
    )
    assert any(row["kept"] for row in fitting)
    assert b"runs out of memory as it is" in done.stderr

    again = gpurun("--tuned", "train.py", "130", env=STEADY)
    assert (again.returncode, again.stdout) == (0, whole.stdout), again.stderr.decode()


@pytest.mark.slow  # quick twin: `for_memory` in unit/test_tuner_search_values.py
def test_for_memory_the_peak_falls_and_the_price_is_named(tmp_path: Path, gpurun: Gpurun) -> None:
    script = SCRIPT.replace("327680", "114688").replace("batch_size=8192", "batch_size=4096")
    script = script.replace("nn.GELU()", "nn.GELU(), nn.Tanh(), nn.SiLU(), nn.Tanh(), nn.SiLU()")
    (tmp_path / "train.py").write_text(script)
    options = ("--optimize", "--tune-only", "--objective", "memory", "--json", "found.json")
    limits = ("--max-trials", "3", "--budget", "12m")  # trials take long on a slow machine
    done = gpurun(*options, *limits, "train.py", "0", env=STEADY, timeout=800)
    assert done.returncode == 0, done.stderr.decode()
    report = json.loads((tmp_path / "found.json").read_text())
    assert (report["verdict"], report["objective"]) == ("smaller", "memory")
    before, after = report["baseline"]["peak_memory_bytes"], report["chosen"]["peak_memory_bytes"]
    assert after < 0.9 * before
    low, high = report["memory_reduction_confidence_interval"]
    assert low <= report["memory_reduction"] <= high
    assert report["speedup"] is not None
    assert b"Peak memory" in done.stderr
