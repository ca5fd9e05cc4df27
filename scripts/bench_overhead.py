"""What gpurun adds to a training step: paired launches against python, and the hot path by itself.

    python scripts/bench_overhead.py [--pairs 6]

Each pair runs the same loop under `python` and under `python -m gpurun`, in turn (A B, B A, ...).
A launch's figure is the lower quartile of its step times: what other programs on the machine take
comes on top of both. Prints the ratio of step times with its 95 % interval for a tiny step and for
one of a normal size, the microseconds added a step and a call of a submodule, and the bars.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
STEP_BAR, MODULE_BAR, RATIO_BAR = 20.0, 0.2, 0.005
LOOP = """
import json, sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
width, depth, rounds, out = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
torch.set_num_threads(1)
torch.manual_seed(0)
body = [nn.Linear(width, width) for _ in range(4 if width > 8 else 1)]
model = nn.Sequential(*body, *[nn.Identity() for _ in range(depth)], nn.Linear(width, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(32 * 32, width)), batch_size=32)
times = []
for number in range(rounds):
    began = time.perf_counter()
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    times.append((time.perf_counter() - began) / 32)
times = sorted(times[rounds // 10:])
with open(out, "w") as file:
    json.dump(1e6 * times[len(times) // 4], file)
"""
SHAPES = {
    "tiny step": (8, 0, 120),
    "tiny step, 200 submodules": (8, 200, 80),
    "normal step": (1024, 0, 10),
}
"""Width, idle submodules and epochs of 32 steps."""


def launch(folder: Path, words: list[str], shape: tuple[int, int, int]) -> float:
    """Microseconds a step of one launch."""
    out = folder / "time.json"
    subprocess.run(
        [sys.executable, *words, "loop.py", *map(str, shape), str(out)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        check=True,
        stderr=subprocess.DEVNULL,
    )
    return float(json.loads(out.read_text()))


def pairs(folder: Path, shape: tuple[int, int, int], count: int) -> list[tuple[float, float]]:
    """(python, gpurun) microseconds a step of each pair."""
    sides: dict[str, list[str]] = {"python": [], "gpurun": ["-m", "gpurun", "--quiet"]}
    found = []
    for number in range(count):
        order = list(sides) if number % 2 == 0 else list(reversed(sides))
        times = {side: launch(folder, sides[side], shape) for side in order}
        found.append((times["python"], times["gpurun"]))
    return found


def interval(values: list[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval."""
    from scipy.stats import t  # type: ignore[import-untyped]

    mean = statistics.fmean(values)
    half = t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def main() -> None:
    """Run every shape and print what it shows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=6)
    count = parser.parse_args().pairs
    added = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "loop.py").write_text(LOOP)
        for label, shape in SHAPES.items():
            found = pairs(folder, shape, count)
            mean, low, high = interval([math.log(ours / theirs) for theirs, ours in found])
            added[label] = interval([ours - theirs for theirs, ours in found])
            base = statistics.median(theirs for theirs, _ in found)
            print(
                f"{label}: python {base:.1f} µs, gpurun ×{math.exp(mean):.4f} "
                f"[{math.exp(low):.4f}, {math.exp(high):.4f}], {added[label][0]:+.1f} µs a step"
            )
            if label == "normal step":
                print(f"  ratio bar {1 + RATIO_BAR:.3f}: {_kept(low, high, math.log1p(RATIO_BAR))}")
    step, low, high = added["tiny step"]
    print(f"a step: {step:.1f} µs [{low:.1f}, {high:.1f}], bar {STEP_BAR}: ", end="")
    print(_kept(low, high, STEP_BAR))
    with_calls, low_calls, high_calls = added["tiny step, 200 submodules"]
    call, low, high = (x / 200 for x in (with_calls - step, low_calls - high, high_calls - low))
    print(f"a submodule call: {call:.3f} µs [{low:.3f}, {high:.3f}], bar {MODULE_BAR}: ", end="")
    print(_kept(low, high, MODULE_BAR))


def _kept(low: float, high: float, bar: float) -> str:
    """What the interval says of the bar."""
    if high <= bar:
        return "kept"
    return "NOT kept" if low > bar else "inconclusive"


if __name__ == "__main__":
    main()
