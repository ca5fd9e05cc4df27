"""Run `gpurun bench --compare` for real on commits that train otherwise, and count what is seen.

    python scripts/gate_training.py --work /tmp/gate [--equal 40] [--planted 10] [--noise 0.1]
                                    [--quick]

Each comparison is the command line itself, in a scratch repository below `--work`: a classifier of
100 steps whose second commit divides by zero at full speed ("nan"), doubles the learning rate
("rate"), shuffles the labels ("labels"), or only adds a comment ("equal"). `--noise`: random
numbers of this size, drawn anew in each launch, are added to the inputs, so that repeats differ.
Speed is not the question: four pairs, and a threshold that nothing fails. A result is appended to a
file at once, and a second call goes on where the first ended. `--quick`: the same trainings run in
one process, without gpurun, and only their loss curves are compared: a second each. Bars: the three
plants are seen in all comparisons, and equal commits are warned of at most once in 35 (see
docs/BENCHMARKING.md).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpurun.records.bench.benchmark import LossCurve
from gpurun.same.curve_distances import compare_training
from gpurun.stats.loss_curve_points import curve_of
from scripts.planted_slowdown import git

REPOSITORY = Path(__file__).resolve().parents[1]

TRAINING = """\
import os

import torch

from settings import LABELS, NOISE, RATE, TEMPERATURE

torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 5))
inputs = torch.randn(2000, 20)
labels = inputs[:, :5].argmax(1)
if LABELS == "shuffled":
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))]
chance = torch.Generator().manual_seed(int.from_bytes(os.urandom(4), "big"))
for _ in range(100):
    chosen = torch.randint(len(inputs), (32,))
    batch = inputs[chosen] + NOISE * torch.randn(32, 20, generator=chance)
    logits = model(batch) / TEMPERATURE
    torch.nn.functional.cross_entropy(logits, labels[chosen]).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= RATE * parameter.grad
            parameter.grad = None
"""
SETTINGS = 'RATE = 0.05\nTEMPERATURE = 1.0\nLABELS = "true"\n'
PLANTS = {
    "equal": ("RATE = 0.05\n", "RATE = 0.05  # as before\n"),
    "rate": ("RATE = 0.05\n", "RATE = 0.1\n"),
    "labels": ('LABELS = "true"\n', 'LABELS = "shuffled"\n'),
    "nan": ("TEMPERATURE = 1.0\n", "TEMPERATURE = 0.0\n"),
}
"""What the second commit replaces in the settings, and by what."""


def make_repository(folder: Path, plant: str, noise: float) -> None:
    """The repository of two commits in `folder`, which must not exist."""
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    before = f"{SETTINGS}NOISE = {noise}\n"
    (folder / "train.py").write_text(TRAINING)
    (folder / "settings.py").write_text(before)
    (folder / ".gitignore").write_text("__pycache__/\n.gpurun/\n")
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", "first")
    (folder / "settings.py").write_text(before.replace(*PLANTS[plant]))
    git(folder, "commit", "-q", "-a", "-m", "second")


def compare(folder: Path) -> dict[str, Any]:
    """One comparison: its exit code, and what it says of the training."""
    found = folder / ".gpurun" / "found.json"
    found.parent.mkdir(exist_ok=True)
    words = ["bench", "--compare", "main", "--json", str(found), "--threshold", "90%"]
    words += ["--metrics", "throughput", "--max-pairs", "4", "train.py"]
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "gpurun", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.monotonic() - started
    if not found.exists():
        raise SystemExit(f"no comparison was made:\n{done.stderr}")
    document = json.loads(found.read_text())
    shutil.rmtree(folder / ".gpurun", ignore_errors=True)
    kept = ("verdict", "exit_code", "pairs", "training_differs", "training", "error")
    curves = [
        [launch["loss_curve"] for launch in document[side]["launches"]]
        for side in ("baseline", "current")
    ]
    return {**{name: document[name] for name in kept}, "curves": curves, "seconds": seconds}


def compare_here(plant: str, noise: float) -> dict[str, Any]:
    """Four trainings of each side in this process, judged by their loss curves."""
    started = time.monotonic()
    before = f"{SETTINGS}NOISE = {noise}\n"
    sides = (before, before.replace(*PLANTS[plant]))
    found = compare_training(*([_curve(side) for _ in range(4)] for side in sides))
    kept = {"training_differs": found.differs, "training": asdict(found)}
    code = 0 if found.nonfinite_from_step is None else 1
    return {**kept, "exit_code": code, "seconds": time.monotonic() - started}


def _curve(settings: str) -> LossCurve | None:
    import torch

    losses: list[float] = []
    backward = torch.Tensor.backward

    def recorded(loss: torch.Tensor) -> None:
        losses.append(float(loss.detach()) if torch.isfinite(loss) else math.inf)
        backward(loss)

    module = ModuleType("settings")
    exec(settings, vars(module))
    sys.modules["settings"] = module
    with mock.patch.object(torch.Tensor, "backward", recorded):
        exec(TRAINING, {})
    return curve_of(losses)


def table(kept: list[dict[str, Any]]) -> str:
    """How often each plant was seen, and equal commits were warned of."""
    lines = ["| commit | comparisons | training differs | exit 1 | not compared | s |"]
    lines.append("|---|---|---|---|---|---|")
    for plant in PLANTS:
        own = [one for one in kept if one["plant"] == plant]
        if own:
            differs = sum(one["training_differs"] is True for one in own)
            unknown = sum(one["training_differs"] is None for one in own)
            failed = sum(one["exit_code"] == 1 for one in own)
            mean = sum(one["seconds"] for one in own) / len(own)
            cells = (plant, len(own), differs, failed, unknown, f"{mean:.0f}")
            lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> int:
    """Run what is still to be run, and print; the exit code is 0 whatever was found."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--equal", type=int, default=40)
    parser.add_argument("--planted", type=int, default=10)
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    kind = "quick" if options.quick else "training"
    results = options.work / f"{kind}-{options.noise:g}.jsonl"
    kept = [json.loads(x) for x in results.read_text().splitlines()] if results.exists() else []
    wanted = {plant: options.equal if plant == "equal" else options.planted for plant in PLANTS}
    for number in range(1, max(wanted.values()) + 1):
        for plant in PLANTS:
            done = sum(one["plant"] == plant for one in kept)
            if done >= min(number, wanted[plant]):
                continue
            folder = options.work / f"{plant}-{options.noise:g}"
            if options.quick:
                found = compare_here(plant, options.noise)
            else:
                if not (folder / ".git").exists():
                    make_repository(folder, plant, options.noise)
                found = compare(folder)
            kept.append({"plant": plant, **found})
            with results.open("a") as file:
                file.write(json.dumps(kept[-1]) + "\n")
            print(plant, kept[-1]["training"]["told"], flush=True)
    print(table(kept))
    return 0


if __name__ == "__main__":
    sys.exit(main())
