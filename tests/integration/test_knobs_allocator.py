"""Allocators of host and device are set as asked, and a choice of the user's own is left alone."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Gpurun
from tests.integration.knob_runs import run_under

SCRIPT = """
import ctypes
import json

import psutil
import torch
from torch import nn

torch.set_num_threads(1)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
MIB = 1 << 20


def resident():
    return psutil.Process().memory_info().rss


def step():
    loss = model(torch.ones(2, 4)).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


step()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
blocks = [libc.malloc(MIB) for _ in range(64)]
for block in blocks:
    libc.memset(block, 1, MIB)
held = resident()
for block in reversed(blocks):
    libc.free(block)
print(json.dumps((held - resident()) / MIB))
"""


def test_what_is_freed_stays_with_the_process(tmp_path: Path, gpurun: Gpurun) -> None:
    # launched: a process forked from one that has freed much would keep what it frees, too
    bare = run_under(gpurun, tmp_path, SCRIPT, {}, launch=True)
    kept = run_under(gpurun, tmp_path, SCRIPT, {"host_allocator": "keep"}, launch=True)
    assert kept.knobs == [("host_allocator", "applied", "freed memory is kept")]
    assert bare.printed > 48, "MiB of the 64 that went back to the kernel"
    assert kept.printed < 4


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
