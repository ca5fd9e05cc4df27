"""A script under loader settings ends soon after its last line, in whatever way it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY

pytestmark = pytest.mark.gpu

HEAD = """
import sys, time
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Pictures(Dataset):
    def __init__(self, length=10_000, seconds=0.002):
        self.store = torch.randint(0, 255, (64, 3, 128, 128), dtype=torch.uint8)
        self.length, self.seconds = length, seconds
    def __len__(self):
        return self.length
    def __getitem__(self, index):
        time.sleep(self.seconds)
        return (self.store[index % 64].float() / 255 - 0.5) / 0.25, index % 10

def loader(**more):
    return DataLoader(Pictures(**more), batch_size=16, shuffle=True)

def model_and_optimizer():
    head = nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 10))
    model = nn.Sequential(nn.Conv2d(3, 16, 3, 2), nn.ReLU(), head).cuda()
    return model, torch.optim.SGD(model.parameters(), lr=0.01)

def train(batches, steps=None):
    for step, (x, y) in enumerate(batches, 1):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.cuda()), y.cuda())
        loss.backward()
        optimizer.step()
        if step == steps:
            break

def last_line():
    print("last line", flush=True)

if __name__ == "__main__":
    model, optimizer = model_and_optimizer()
"""
FORMS = {
    "a global loader left by break": "batches = loader(); train(batches, 30); last_line()",
    "a local loader left by break": "(lambda batches: train(batches, 30))(loader()); last_line()",
    "a global loader read to its end": "batches = loader(length=480); train(batches); last_line()",
    "a global iterator": "batches = loader(); it = iter(batches); train(it, 30); last_line()",
    "an exception in an epoch": (
        "batches = loader(); train(batches, 30); last_line(); raise RuntimeError('its own')"
    ),
    "sys.exit in an epoch": "batches = loader(); train(batches, 30); last_line(); sys.exit(3)",
    "KeyboardInterrupt in an epoch": (
        "batches = loader(); train(batches, 30); last_line(); raise KeyboardInterrupt"
    ),
    "two loaders in turn": (
        "one, two = loader(), loader(); train(one, 20); train(two, 20); train(one, 20); last_line()"
    ),
    "a loader that a function holds": (
        "model.batches = loader(); train(model.batches, 30); last_line()"
    ),
    "a second epoch left by break": (
        "batches = loader(length=480); train(batches); train(batches, 9); last_line()"
    ),
    "a slow sample on its way": ("batches = loader(seconds=0.1); train(batches, 10); last_line()"),
    "spawned workers of its own": (
        "batches = DataLoader(Pictures(), batch_size=16, num_workers=2, persistent_workers=True,"
        " multiprocessing_context='spawn'); train(batches, 30); last_line()"
    ),
    "a script that pins and keeps its workers": (
        "batches = DataLoader(Pictures(), batch_size=16, num_workers=2, persistent_workers=True,"
        " pin_memory=True); train(batches, 30); last_line()"
    ),
}
DATA = {
    "loader_workers": 8, "loader_buffers": "reuse", "loader_pin_memory": True,
    "device_prefetch": "ahead", "loader_persistent": True, "host_allocator": "keep",
}  # fmt: skip
WITHOUT_LASTING = {name: value for name, value in DATA.items() if name != "loader_persistent"}
COMPILED = {**DATA, "compile": "reduce-overhead", "autocast": "bf16", "fused_optimizer": "fused"}
SECONDS = 10
"""Half of what torch waits for four workers that nobody asks to end."""

COMPILE_WORKER_SECONDS = 20
"""After so long inductor's compile worker has started. At exit torch waits for it
(`SubprocPool.shutdown`) while it still imports, 10 s and more on busy cores, after a compilation by
hand as well. A training that lasts longer than 30 quick steps does not meet this."""


def plain_code(folder: Path) -> int:
    """The exit code of the script without gpurun; with one thread, for tests run side by side."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=folder, env=environment, capture_output=True
    )
    return done.returncode if done.returncode >= 0 else 128 - done.returncode


def seconds_after_last_line(
    folder: Path, script: str, settings: Mapping[str, object]
) -> tuple[float | None, int | None]:
    """How long the script lived after it had printed its last line, and its exit code; None and
    None where it was killed after three times `SECONDS`."""
    (folder / "train.py").write_text(script)
    (folder / "set.json").write_text(json.dumps({"settings": settings}))
    launched = subprocess.Popen(
        [sys.executable, "-m", "gpurun", "--settings", "set.json", "train.py"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=(folder / "stderr").open("wb"),
        start_new_session=True,
    )
    assert launched.stdout is not None
    overdue = threading.Timer(150, os.killpg, (launched.pid, signal.SIGKILL))
    overdue.start()
    said = launched.stdout.readline()
    printed = time.monotonic()
    overdue.cancel()
    assert said == b"last line\n", (folder / "stderr").read_text()
    try:
        code = launched.wait(3 * SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(launched.pid, signal.SIGKILL)
        return None, None
    return time.monotonic() - printed, code


@pytest.mark.parametrize("settings", [DATA, WITHOUT_LASTING], ids=["lasting", "anew"])
@pytest.mark.parametrize("form", FORMS)
def test_a_script_under_loader_settings_ends_soon_after_its_last_line(
    tmp_path: Path, form: str, settings: dict[str, object]
) -> None:
    seconds, code = seconds_after_last_line(tmp_path, HEAD + f"    {FORMS[form]}\n", settings)
    assert seconds is not None, (tmp_path / "stderr").read_text()
    assert seconds < SECONDS
    assert code == plain_code(tmp_path)


def test_a_compiled_script_under_loader_settings_ends_soon_after_its_last_line(
    tmp_path: Path,
) -> None:
    steps = "batches = loader(); train(batches, 30)"
    script = HEAD + f"    {steps}; time.sleep({COMPILE_WORKER_SECONDS}); last_line()\n"
    seconds, code = seconds_after_last_line(tmp_path, script, COMPILED)
    assert seconds is not None
    assert seconds < SECONDS
    assert code == 0
