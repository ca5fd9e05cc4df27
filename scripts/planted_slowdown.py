"""A small repository of two commits whose second one trains as fast as the first, or slower.

What `gate_error_rates.py` and `gate_peers.py` measure: a recurrent network whose step applies one
layer `DEPTH` times. The planted second commit raises DEPTH, from 23 to 25 on the CPU: a step does
25/23 of the work with the same parameters, so that 8 % of the throughput are lost. The equal one
only adds a comment. There is no optimizer object: importing torch's takes as long as torch itself.
`bisect_culprits.py` searches a longer history of the same, of which one commit is planted.

Bodies on the CPU: `compute` does nothing but arithmetic, on one thread; `cores` does the same on
all cores, so that any other job on the machine slows it down; `waiting` spends most of each step
asleep, as one that waits for its data does. `gpu` keeps a GPU busy, and its planted commit loses
5 %: the threshold itself.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Body:
    """What a step is made of: a layer of so many units, and seconds asleep after each of `depth`.

    `steps`: about 1.3 s of them (on a GPU 4 s), the unit of tools that measure whole functions.
    `rows`: of the batch. `threads`: None for as many as there are cores.
    """

    width: int
    wait: float
    steps: int
    depth: int = 23
    planted_depth: int = 25
    rows: int = 64
    device: str = "cpu"
    threads: int | None = 1


BODIES = {
    "compute": Body(256, 0.0, 125),
    "cores": Body(512, 0.0, 60, threads=None),
    "waiting": Body(64, 0.001, 50),
    "gpu": Body(2048, 0.0, 100, depth=19, planted_depth=20, rows=4096, device="cuda"),
}

TRAINING = '''\
"""The training that is measured: `train(steps)`."""

import time

import torch

from work import DEPTH

WIDTH, WAIT, DEVICE, THREADS = {width}, {wait}, "{device}", {threads}

if THREADS:
    torch.set_num_threads(THREADS)
torch.manual_seed(0)


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        for _ in range(DEPTH):
            x = torch.tanh(self.layer(x))
        return x


MODEL = Recurrent().to(DEVICE)
BATCH = torch.randn({rows}, WIDTH, device=DEVICE)


def train(steps):
    for _ in range(steps):
        if WAIT:
            time.sleep(DEPTH * WAIT)
        MODEL(BATCH).square().mean().backward()
        with torch.no_grad():
            for parameter in MODEL.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
'''
SCRIPT = "import sys\n\nfrom training import train\n\ntrain(int(sys.argv[1]))\n"
IGNORED = "__pycache__/\n.gpurun/\n.asv/\n.benchmarks/\n"
AUTHOR = ("-c", "user.name=gate", "-c", "user.email=gate@example.org")


def git(folder: Path, *words: str) -> str:
    """The output of a git command; the user's own settings do not reach it."""
    alone = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    done = subprocess.run(
        ["git", "-C", folder, *AUTHOR, *words],
        env={**os.environ, **alone},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def make_repository(folder: Path, body: Body, planted: bool, files: Mapping[str, str]) -> Path:
    """The repository in `folder`, which must not exist; `files`: what it holds besides."""
    make_history(folder, body, 1, 1 if planted else 2, files)
    return folder


def make_history(
    folder: Path, body: Body, commits: int, culprit: int, files: Mapping[str, str]
) -> None:
    """A repository in `folder`, which must not exist: a first commit, and so many after it, of
    which all from number `culprit` on are slower."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    training = TRAINING.format(
        width=body.width, wait=body.wait, rows=body.rows, device=body.device, threads=body.threads
    )
    whole = {"training.py": training, "train.py": SCRIPT, ".gitignore": IGNORED, **files}
    for name, text in whole.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    for number in range(commits + 1):
        depth = body.planted_depth if number >= culprit else body.depth
        (folder / "work.py").write_text(f"DEPTH = {depth}\n# change {number}\n")
        git(folder, "add", ".")
        git(folder, "commit", "-q", "-m", f"change {number}")
