"""What gpurun adds to a training step: paired launches against python, and the hot path by itself.

    python scripts/bench_overhead.py [--pairs 6]

Each pair is a launch of the same loop under `python` and one under `python -m gpurun`, alive at the
same time: they take turns, an epoch each (A B, B A, ...), while the other waits for its line on
stdin, so that what other programs take comes on top of both. A pair's figure is the median over its
turns. Both keep freed memory: glibc gives it back at every step in some launches and not in others,
by what lies at the top of the heap, which is up to 45 % of a step and no difference of the sides.
What the launcher does beside the script (a sample every few seconds) falls into the turns of both
sides and so into neither figure.

Prints the ratio of step times with its 95 % interval over pairs for a tiny step and for one of some
15 ms, the microseconds added a step and a call of a submodule, and the bars.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen

REPOSITORY = Path(__file__).resolve().parents[1]
STEP_BAR, MODULE_BAR, RATIO_BAR = 20.0, 0.2, 0.005
LOOP = """
import sys, time, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
width, layers, depth = map(int, sys.argv[1:4])
torch.set_num_threads(1)
torch.manual_seed(0)
body = [nn.Linear(width, width) for _ in range(layers)]
model = nn.Sequential(*body, *[nn.Identity() for _ in range(depth)], nn.Linear(width, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(32 * 32, width)), batch_size=32)
for line in sys.stdin:
    began = time.perf_counter()
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    print(1e6 * (time.perf_counter() - began) / 32, flush=True)
"""
SHAPES = {
    "tiny step": ((8, 1, 0), 300),
    "tiny step, 200 submodules": ((8, 1, 200), 200),
    "normal step": ((128, 240, 0), 20),
}
"""Width, linear layers and idle submodules; how many epochs of 32 steps each side takes."""
WARMUP = 5
"""Epochs that are not counted."""


@contextlib.contextmanager
def launched(folder: Path, words: list[str], shape: tuple[int, int, int]) -> Iterator[Popen[str]]:
    """A loop that waits for its turns; it ends with its stdin."""
    with Popen(
        [sys.executable, *words, "loop.py", *map(str, shape)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "MALLOC_TRIM_THRESHOLD_": str(4 << 30)},
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        text=True,
    ) as process:
        yield process


def turn(process: Popen[str]) -> float:
    """Microseconds a step of one epoch."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def pair(folder: Path, shape: tuple[int, int, int], epochs: int) -> tuple[float, float, float]:
    """Of one pair of launches: python's microseconds a step, the ratio, and what gpurun adds."""
    bare, added, ratios = [], [], []
    ours = ["-m", "gpurun", "--quiet"]
    with launched(folder, [], shape) as python, launched(folder, ours, shape) as gpurun:
        for number in range(WARMUP + epochs):
            order = (python, gpurun) if number % 2 == 0 else (gpurun, python)
            took = {process: turn(process) for process in order}
            if number >= WARMUP:
                bare.append(took[python])
                ratios.append(took[gpurun] / took[python])
                added.append(took[gpurun] - took[python])
    return statistics.median(bare), statistics.median(ratios), statistics.median(added)


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
        for label, (shape, epochs) in SHAPES.items():
            found = [pair(folder, shape, epochs) for _ in range(count)]
            mean, low, high = interval([math.log(ratio) for _, ratio, _ in found])
            added[label] = interval([more for _, _, more in found])
            base = statistics.median(bare for bare, _, _ in found)
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
