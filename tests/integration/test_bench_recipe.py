"""The two lines of docs/BENCHMARKING.md, word for word, in a fresh clone of a small repository."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from gpurun.arguments.bench_flags import parse_bench
from tests.conftest import REPOSITORY
from tests.repositories import commit, git, new_repository

INSTALL = "pip install FOLDER   # a clone of gpurun; it is on no package index yet\n"

# Plain gradient descent: torch's optimizers take seconds to import.
TRAINING = """
import argparse
import torch
from torch.utils.data import DataLoader, TensorDataset
from images import augment

options = argparse.ArgumentParser()
options.add_argument("--epochs", type=int, default=10)
torch.manual_seed(0)
inputs = torch.randn(320, 16)
table = TensorDataset(inputs, inputs.sum(1, keepdim=True))
model = torch.nn.Linear(16, 1)
for _ in range(options.parse_args().epochs):
    for x, y in DataLoader(table, batch_size=8, shuffle=True):
        torch.nn.functional.mse_loss(model(augment(x)), y).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.01 * parameter.grad
                parameter.grad = None
torch.save(model.state_dict(), "model.pt")
"""
AUGMENT = "import time\n\n\ndef augment(x):\n    time.sleep({seconds})\n    return x\n"
# So wide a threshold takes the fewest launches that decide anything.
TABLE = '[bench]\nmetrics = ["throughput"]\nthresholds = { throughput = "50%" }\n'


def recipe() -> str:
    """The block, with the package under test in place of the one that it installs."""
    text = (REPOSITORY / "docs" / "BENCHMARKING.md").read_text()
    block = re.findall(r"```bash\n(.*?)```", text.split("\n## In CI\n")[1], re.DOTALL)[0]
    assert block.startswith(INSTALL)
    return block.removeprefix(INSTALL)


def fresh_clone(folder: Path, second: dict[str, str]) -> Path:
    """Two commits, of which the second changes some files, cloned as a pipeline does."""
    origin = new_repository(folder / "origin")
    first = {"train.py": TRAINING, "images.py": AUGMENT.format(seconds=0.02), "gpurun.toml": TABLE}
    commit(origin, first)
    commit(origin, second)
    git(folder, "clone", "-q", origin.as_uri(), "clone")
    return folder / "clone"


def follow(clone: Path) -> subprocess.CompletedProcess[str]:
    """Run the block as a pipeline does: a shell that ends at the first error."""
    programs = clone.parent / "bin"
    programs.mkdir()
    (programs / "gpurun").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m gpurun "$@"\n')
    (programs / "gpurun").chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", recipe()],
        cwd=clone,
        env={**os.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_commands_flags_of_the_recipe_are_those_of_gpurun() -> None:
    (line,) = recipe().splitlines()
    program, command, *words = shlex.split(line)
    assert (program, command) == ("gpurun", "bench")
    options = parse_bench(words)
    assert (options.compare, options.script) == ("origin/main", "train.py")
    assert options.args == ("--epochs", "1")


@pytest.mark.slow  # quick twin: the comparison in test_bench_live.py
@pytest.mark.alone
@pytest.mark.parametrize(
    ("second", "code", "verdict"),
    [
        ({"README.md": "an unchanged tree\n"}, 0, "pass"),
        ({"images.py": AUGMENT.format(seconds=0.1)}, 1, "regression"),
    ],
    ids=["unchanged", "slowed"],
)
def test_the_recipe_of_the_docs_tells_a_slowed_tree(
    second: dict[str, str], code: int, verdict: str, tmp_path: Path
) -> None:
    clone = fresh_clone(tmp_path, second)
    done = follow(clone)
    assert done.returncode == code, done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"verdict={verdict} exit={code} ")
    assert git(clone, "status", "--porcelain") == ""
