"""What gpurun adds to a training step, by live pairs: the same loop with and without gpurun.

    python scripts/bench_overhead.py [--pairs 6] [--seconds 5] [--only TEXT]

Both sides of a pair are launched, warmed up and then take turns of a few steps, one frozen while
the other trains (`gpurun/pairs/turn_taking.py`), so that what other programs take comes on top of
both. The plain side carries the turn hook and nothing else of gpurun. The first row measures two
plain sides against each other: its interval must contain 0, and its width is the noise.
Launches differ beyond their turns, so every figure is a mean over pairs of fresh launches, with its
95 % interval (Student's t). Both sides keep freed memory (MALLOC_TRIM_THRESHOLD_): glibc gives it
back at every step in some launches and not in others, which is no difference of the sides.

Prints the ratio of step times, the microseconds added a step and a call of a submodule, and the
bars of the specification: 0.5 % of a 15 ms step, 20 µs a step, 0.2 µs a module call.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpurun.isolation.isolation_mode import Mode
from gpurun.isolation.sandbox import LaunchSpec, Sandbox
from gpurun.launch.launch_command import child_environment
from gpurun.pairs.side import Side, await_both
from gpurun.pairs.turn_ratio import LEAST_ROUNDS, Round
from gpurun.pairs.turn_taking import take_turns
from gpurun.records.codec import to_json
from gpurun.records.spec import RunSpec
from gpurun.rundir import write_json
from gpurun.trials.turn_fifos import make_fifos

REPOSITORY = Path(__file__).resolve().parents[1]
STEP_BAR, MODULE_BAR, RATIO_BAR = 20.0, 0.2, 0.005
PATIENCE_SECONDS = 120.0
WARMUP_STEPS = 200
LOOP = """
import sys, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
width, layers, depth = map(int, sys.argv[1:4])
torch.set_num_threads(1)
torch.manual_seed(0)
body = [nn.Linear(width, width) for _ in range(layers)]
model = nn.Sequential(*body, *[nn.Identity() for _ in range(depth)], nn.Linear(width, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = DataLoader(TensorDataset(torch.randn(32 * 32, width)), batch_size=32)
while True:
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
"""
PLAIN = """
import itertools, runpy, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from gpurun.runtime.trial.live_pair_side import Turns
turns = Turns(Path(sys.argv[2]), int(sys.argv[3]))
steps = itertools.count(1)
register_optimizer_step_post_hook(lambda *_: turns.after_step(next(steps)) and sys.exit())
sys.path[0] = ""
sys.argv = sys.argv[4:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
SHAPES = {
    "tiny step": (8, 1, 0),
    "tiny step, 200 submodules": (8, 1, 200),
    "normal step": (128, 240, 0),
}
"""Width, linear layers and idle submodules."""


@dataclass(frozen=True)
class Pair:
    """One pair of launches: step time of the first side in microseconds, ratio, added."""

    base: float
    ratio: float
    added: float


@contextlib.contextmanager
def launched(folder: Path, name: str, plain: bool, shape: Sequence[int]) -> Iterator[Side]:
    """One side, which works on the real files; it is killed at the end of the pair."""
    run_dir = folder / name
    control = run_dir / "control"
    make_fifos(control)
    words = ["loop.py", *map(str, shape)]
    environment = {**os.environ, "MALLOC_TRIM_THRESHOLD_": str(4 << 30)}
    if plain:
        words = ["-c", PLAIN, str(REPOSITORY), str(control), str(WARMUP_STEPS), *words]
    else:
        spec = RunSpec(str(run_dir), os.getpid(), turns_after_steps=WARMUP_STEPS)
        write_json(run_dir / "spec.json", to_json(spec))
        environment = child_environment(run_dir / "spec.json", environment)
    order = LaunchSpec(
        argv=(sys.executable, *words),
        env=environment,
        cwd=folder,
        writable=(),
        layers=(),
        mode=Mode.IN_PLACE,
        log=run_dir / "output.log",
    )
    with (
        Sandbox(order) as sandbox,
        contextlib.closing(Side(name, sandbox, control, PATIENCE_SECONDS)) as side,
    ):
        yield side


def pair(shape: Sequence[int], both_plain: bool, seconds: float, draws: random.Random) -> Pair:
    """Launch both sides and let them take turns for so long."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "loop.py").write_text(LOOP)
        with (
            launched(folder, "plain", True, shape) as plain,
            launched(folder, "gpurun", both_plain, shape) as other,
        ):
            await_both((plain, other))
            end = time.monotonic() + seconds
            rounds = take_turns(
                (plain, other),
                draws,
                lambda done: len(done) >= LEAST_ROUNDS and time.monotonic() > end,
            )
    return figures(rounds)


def figures(rounds: Sequence[Round]) -> Pair:
    """Medians over the rounds of one pair."""
    steps = [(1e6 * r.first.step_seconds, 1e6 * r.second.step_seconds) for r in rounds]
    return Pair(
        base=statistics.median(a for a, _ in steps),
        ratio=math.exp(statistics.median(math.log(b / a) for a, b in steps)),
        added=statistics.median(b - a for a, b in steps),
    )


def interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and 95 % interval."""
    from scipy.stats import t  # type: ignore[import-untyped]

    mean = statistics.fmean(values)
    half = t.ppf(0.975, len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def main() -> None:
    """Run every shape and print what it shows."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=5.0, help="turns of a pair last so long")
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    draws = random.Random(0)
    added: dict[str, tuple[float, float, float]] = {}
    cases = [(f"{label}, both plain", shape, True) for label, shape in list(SHAPES.items())[::2]]
    cases += [(label, shape, False) for label, shape in SHAPES.items()]
    for label, shape, both_plain in cases:
        if asked.only not in label:
            continue
        found = [pair(shape, both_plain, asked.seconds, draws) for _ in range(asked.pairs)]
        mean, low, high = interval([math.log(one.ratio) for one in found])
        added[label] = interval([one.added for one in found])
        base = statistics.median(one.base for one in found)
        more, least, most = added[label]
        print(
            f"{label}: {base:.1f} µs a step, ×{math.exp(mean):.4f} "
            f"[{math.exp(low):.4f}, {math.exp(high):.4f}], "
            f"{more:+.1f} µs [{least:+.1f}, {most:+.1f}]",
            flush=True,
        )
        if label == "normal step":
            print(f"  ratio bar {1 + RATIO_BAR:.3f}: {_kept(low, high, math.log1p(RATIO_BAR))}")
    if SHAPES.keys() <= added.keys():
        _bars(added)


def _bars(added: dict[str, tuple[float, float, float]]) -> None:
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
