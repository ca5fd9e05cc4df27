"""Allocators of host and device are set as asked, and a choice of the user's own is left alone."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Gpurun
from tests.integration.knob_runs import run_under

SCRIPT = """
import json
import resource

import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def step():
    blocks = [torch.ones(4 << 20) for _ in range(4)]  # 16 MiB each
    loss = model(torch.ones(2, 4)).sum() + blocks[0][0]
    del blocks
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


for _ in range(5):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    step()
print(json.dumps((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 20))
"""


def test_what_a_step_frees_serves_the_next_step(tmp_path: Path, gpurun: Gpurun) -> None:
    bare = run_under(gpurun, tmp_path, SCRIPT, {})
    kept = run_under(gpurun, tmp_path, SCRIPT, {"host_allocator": "keep"})
    assert kept.knobs == [("host_allocator", "applied", "freed memory is kept")]
    assert bare.printed > 100
    assert kept.printed < bare.printed / 10


CHOICE = """
import json, os
CHOICE
import torch

names = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
print(json.dumps([os.environ[name] for name in names if name in os.environ]))
"""


def test_torch_finds_the_setting_of_its_device_allocator(tmp_path: Path, gpurun: Gpurun) -> None:
    script = CHOICE.replace("CHOICE\n", "", 1)
    run = run_under(gpurun, tmp_path, script, {"allocator": "expandable_segments"})
    assert run.printed == ["expandable_segments:True"]
    assert run.outcomes("allocator") == ["applied"]


def test_a_setting_of_the_users_own_stands(tmp_path: Path, gpurun: Gpurun) -> None:
    settings = {"allocator": "max_split_512"}
    own = "garbage_collection_threshold:0.8"
    line = f'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = os.environ["PYTORCH_ALLOC_CONF"] = "{own}"'
    by_script = run_under(gpurun, tmp_path, CHOICE.replace("CHOICE\n", f"{line}\n", 1), settings)
    assert by_script.printed == [own, own]
    env = {"PYTORCH_ALLOC_CONF": own}
    script = CHOICE.replace("CHOICE\n", "", 1)
    before = run_under(gpurun, tmp_path, script, settings, env=env)
    assert before.printed == [own]
    assert by_script.outcomes("allocator") == before.outcomes("allocator") == ["skipped"]


def test_an_unknown_value_is_told_and_changes_nothing(tmp_path: Path, gpurun: Gpurun) -> None:
    run = run_under(gpurun, tmp_path, SCRIPT, {"host_allocator": "jemalloc"})
    assert run.outcomes("host_allocator") == ["skipped"]
