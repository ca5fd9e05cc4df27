"""Whether live pairs tell the truth: equal sides, and real changes beside whole runs.

    python scripts/live_bias.py [--pairs 6] [--runs 4] [--seconds 12] [--only TEXT]

Each case is a training loop on the CPU with two settings. Three figures are printed for it: the
ratio of step times of a side against itself, by live pairs, which must be 1; that of the second
setting over the first, by live pairs; and the same of whole uninterrupted runs, launched in turn,
which time themselves over whole epochs. With 95 % intervals (Student's t over launches).
"""

from __future__ import annotations

import argparse
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpurun.isolation.isolation_mode import Mode
from gpurun.isolation.sandbox import LaunchSpec, Sandbox
from gpurun.launch.launch_command import child_environment
from gpurun.pairs.live_pair import PairSide, run_live_pair
from gpurun.records.codec import to_json
from gpurun.records.spec import RunSpec
from gpurun.rundir import write_json
from gpurun.trials.turn_fifos import make_fifos
from scripts.bench_overhead import interval

LOOP = """
import sys, time, torch
from torch.utils.data import DataLoader, Dataset
mode, item, compute, workers, persistent, batches, seconds = sys.argv[1:]
item, compute, seconds = float(item), float(compute), float(seconds)
workers, persistent, batches = int(workers), persistent == "persistent", int(batches)

def spend(wanted):
    if mode == "sleep":
        time.sleep(wanted)
    else:  # processor time, so that a busy machine takes longer for it
        end = time.thread_time() + wanted
        while time.thread_time() < end:
            pass

class Data(Dataset):
    def __len__(self):
        return 8 * batches
    def __getitem__(self, index):
        spend(item)
        return torch.zeros(8)

def main():
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    options = {"persistent_workers": persistent} if workers else {}
    loader = DataLoader(Data(), batch_size=8, num_workers=workers, **options)
    done, began = 0, 0.0
    while True:
        for x in loader:
            spend(compute)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            done += 1
            # from the end of an epoch to that of another, or from step to step of a long one
            if done % min(batches, 500) == 0:
                if not began:
                    first, began = done, time.perf_counter()
                elif time.perf_counter() > began + seconds:
                    print((time.perf_counter() - began) / (done - first))
                    return

if __name__ == "__main__":
    main()
"""
ENDLESS = "1e9"


@dataclass(frozen=True)
class Setting:
    """One side: how it spends its time, seconds an item (8 a batch) and a step, workers, epochs."""

    mode: str
    item: float
    compute: float
    workers: int
    persistent: bool = False
    batches: int = 5000

    def words(self, seconds: str) -> list[str]:
        """The script's arguments."""
        keep = "persistent" if self.persistent else "anew"
        figures = (self.item, self.compute, self.workers, keep, self.batches)
        return [self.mode, *map(str, figures), seconds]


CASES = {
    "compute-bound, a step 10 % longer": (
        Setting("burn", 0.0001, 0.006, 1),
        Setting("burn", 0.0001, 0.0066, 1),
    ),
    "loader-bound, workers compute, 15 % longer": (
        Setting("burn", 0.0015, 0.001, 1),
        Setting("burn", 0.001725, 0.001, 1),
    ),
    "loader-bound, workers wait, 15 % longer": (
        Setting("sleep", 0.002, 0.002, 2),
        Setting("sleep", 0.0023, 0.002, 2),
    ),
    "workers wait, 2 and 4 of them": (
        Setting("sleep", 0.002, 0.002, 2),
        Setting("sleep", 0.002, 0.002, 4),
    ),
    "no worker and 2": (Setting("sleep", 0.001, 0.003, 0), Setting("sleep", 0.001, 0.003, 2)),
    "epochs of 30 steps, workers anew and lasting": (
        Setting("sleep", 0.0005, 0.005, 2, batches=30),
        Setting("sleep", 0.0005, 0.005, 2, True, 30),
    ),
    "epochs of 200 steps, workers anew and lasting": (
        Setting("sleep", 0.0005, 0.005, 2, batches=200),
        Setting("sleep", 0.0005, 0.005, 2, True, 200),
    ),
}


def launched(folder: Path, run_dir: Path, words: Sequence[str], hold: bool) -> Sandbox:
    """Start one side of a live pair, which works on the real files. Both warm up at once."""
    del hold
    make_fifos(run_dir / "control")
    write_json(
        run_dir / "spec.json", to_json(RunSpec(str(run_dir), os.getpid(), turns_after_steps=20))
    )
    environment = child_environment(run_dir / "spec.json", dict(os.environ))
    log = run_dir / "output.log"
    argv = (sys.executable, *words)
    return Sandbox(LaunchSpec(argv, environment, folder, (), (), Mode.IN_PLACE, log))


def live(folder: Path, pair: Sequence[Setting], draws: random.Random) -> float:
    """The log ratio of step times, second over first, of one live pair."""
    place = Path(tempfile.mkdtemp(dir=folder))
    sides = []
    for name, setting in zip(("first", "second"), pair, strict=True):
        run_dir = place / name
        words = [str(folder / "loop.py"), *setting.words(ENDLESS)]
        sides.append(PairSide(name, partial(launched, place, run_dir, words), run_dir, 120.0))
    end = run_live_pair((sides[0], sides[1]), tuple, lambda: None, draws, time.monotonic() + 60)
    if end.ratio is None:
        raise SystemExit(f"no ratio: {end.failure}")
    return end.ratio.log


def alone(folder: Path, setting: Setting, seconds: float) -> float:
    """Seconds a step of a whole run that nothing interrupts."""
    words = [sys.executable, str(folder / "loop.py"), *setting.words(str(seconds))]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def whole_runs(
    folder: Path, pair: Sequence[Setting], seconds: float, draws: random.Random
) -> float:
    """The log ratio of two whole runs, launched one after the other in random order."""
    found = {number: alone(folder, pair[number], seconds) for number in draws.sample((0, 1), 2)}
    return math.log(found[1] / found[0])


def told(what: str, logs: Sequence[float]) -> None:
    """Print the mean ratio and its interval."""
    mean, low, high = (math.exp(x) for x in interval(logs))
    print(f"  {what}: ×{mean:.4f} [{low:.4f}, {high:.4f}]", flush=True)


def main() -> None:
    """Run every case and print what it shows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=12.0, help="of a whole run")
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    draws = random.Random(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "loop.py").write_text(LOOP)
        for label, (first, second) in CASES.items():
            if asked.only not in label:
                continue
            print(label, flush=True)
            same = [live(folder, (first, first), draws) for _ in range(asked.pairs)]
            told("against itself", same)
            real = [live(folder, (first, second), draws) for _ in range(asked.pairs)]
            told("live pairs", real)
            runs = [
                whole_runs(folder, (first, second), asked.seconds, draws) for _ in range(asked.runs)
            ]
            told("whole runs", runs)


if __name__ == "__main__":
    main()
