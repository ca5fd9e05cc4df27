"""Scripts to be tuned, and what a tuning of them has left behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.conftest import REPOSITORY

TRAINING = """
import time, torch
from torch.utils.data import DataLoader, Dataset
torch.set_num_threads(1)
torch.manual_seed(0)

class Slow(Dataset):
    def __len__(self):
        return {samples}
    def __getitem__(self, index):
        time.sleep({sleep})
        draw = torch.Generator().manual_seed(index)
        return torch.randn(8, generator=draw), index % 2

model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(Slow(), batch_size={batch}, shuffle=True):
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def training(steps: int, *, sleep: float = 0.0, batch: int = 4, pause: float = 0.0) -> str:
    """A script of so many steps that spends `sleep` seconds on each sample.

    `pause`: seconds of a step that no setting shortens. Few pairs then show a gain precisely.
    """
    text = TRAINING.format(samples=steps * batch, sleep=sleep, batch=batch)
    return f"{text}    time.sleep({pause})\n" if pause else text


def configure(folder: Path, text: str) -> None:
    """Write `gpurun.toml` with `text` under `[optimize]`; whole tables may follow."""
    (folder / "gpurun.toml").write_text(f"[optimize]\n{text}\n")


def launch(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
    """gpurun in a folder, where no test's own fixtures are, with these variables besides."""
    steering = ("GPURUN_", "PET_", "TORCHELASTIC_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(steering)}
    return subprocess.run(
        [sys.executable, "-m", "gpurun", *words],
        cwd=folder,
        env={**kept, **variables, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=800,
        check=False,
    )


def run_folder(home: Path) -> Path:
    """The newest run folder with a tuning."""
    found = sorted(home.glob("runs/*/tuning.json"), key=lambda path: path.stat().st_mtime)
    return found[-1].parent


def report_of(folder: Path) -> dict[str, Any]:
    """The tuning that was recorded in a working folder."""
    document = json.loads((run_folder(folder / ".gpurun") / "tuning.json").read_text())
    assert isinstance(document, dict)
    return document


def lines(done: subprocess.CompletedProcess[bytes]) -> list[str]:
    """What a finished gpurun wrote to stderr; a traceback of ours is a bug."""
    text = done.stderr.decode()
    assert "internal error" not in text, text
    assert "gpurun/tuner" not in text, text
    return text.splitlines()
