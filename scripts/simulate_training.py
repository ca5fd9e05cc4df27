"""How often does the comparison of loss curves err? By simulation over the code that decides.

    python scripts/simulate_training.py [--rounds 400]

Loss curves of 100 steps of `launches` on each side, under several kinds of noise between launches:
none, rounding that grows from step to step until the curves are unrelated, normal, heavy tails, a
random walk, one of two courses by chance, and losses in steps of bfloat16. "equal": both sides have
the same curve before noise, and the rate is that of false warnings. "rate": the current side falls
twice as fast, as with a doubled learning rate. "labels": it does not fall.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from gpurun.same.curve_distances import compare_training
from gpurun.stats.loss_curve_points import curve_of
from scripts.simulate_pairs import wilson

STEPS = 100
Noise = Callable[[random.Random], list[float]]
"""What is added to the losses of one launch, as fractions of them."""


def _chaos(draw: random.Random) -> list[float]:
    apart, noise = 0.0, []
    for _ in range(STEPS):
        apart = 1.25 * apart + draw.gauss(0, 6e-8)
        noise.append(0.1 * math.tanh(10 * apart))
    return noise


def _walk(draw: random.Random) -> list[float]:
    noise = [draw.gauss(0, 0.01)]
    while len(noise) < STEPS:
        noise.append(noise[-1] + draw.gauss(0, 0.01))
    return noise


def _two_courses(draw: random.Random) -> list[float]:
    return [0.05 * draw.randint(0, 1)] * STEPS


NOISES: dict[str, Noise] = {
    "none": lambda draw: [0.0] * STEPS,
    "growing rounding": _chaos,
    "normal, 5 %": lambda draw: [draw.gauss(0, 0.05) for _ in range(STEPS)],
    "heavy tails": lambda draw: [
        0.02 * draw.gauss(0, 1) / math.sqrt(draw.gammavariate(1, 1)) for _ in range(STEPS)
    ],
    "random walk": _walk,
    "two courses": _two_courses,
    "bfloat16": lambda draw: [0.004 * draw.randint(0, 1) for _ in range(STEPS)],
}
SPEEDS = {"equal": 1.0, "rate": 2.0, "labels": 0.0}


def main() -> int:
    """Print a row for each noise and number of launches."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=400)
    rounds = parser.parse_args().rounds
    print(f"| noise | launches | {' | '.join(SPEEDS)} |\n|---|---|{'---|' * len(SPEEDS)}")
    for name, noise in NOISES.items():
        for launches in (4, 6):
            cells = [_cell(noise, launches, speed, rounds) for speed in SPEEDS.values()]
            print(f"| {name} | {launches} | {' | '.join(cells)} |", flush=True)
    return 0


def _cell(noise: Noise, launches: int, speed: float, rounds: int) -> str:
    draw = random.Random(launches)
    seen = sum(_differs(noise, launches, speed, draw) for _ in range(rounds))
    low, high = wilson(seen, rounds)
    return f"{100 * seen / rounds:.1f} % ({100 * low:.1f}–{100 * high:.1f})"


def _differs(noise: Noise, launches: int, speed: float, draw: random.Random) -> bool:
    batches = [1 + draw.gauss(0, 0.1) for _ in range(STEPS)]  # the same ones for all launches
    sides = [
        [
            curve_of(
                [
                    batch * (0.3 + 2 * math.exp(-0.01 * pace * step)) * (1 + extra)
                    for step, (batch, extra) in enumerate(zip(batches, noise(draw), strict=True))
                ]
            )
            for _ in range(launches)
        ]
        for pace in (1.0, speed)
    ]
    return compare_training(*sides).differs is True


if __name__ == "__main__":
    sys.exit(main())
