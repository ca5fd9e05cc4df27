"""Simulate the sequential test of `gpurun.stats`: false claims, coverage, pairs needed.

    python scripts/simulate_error_rates.py [--repeats 2000]

Launches run in the order A B, B A, A B, ... as the tuner runs them. Noise laws: `gauss`; `t3`
(Student with 3 degrees of freedom, heavy tails); `drift` (Gaussian on top of a machine that slows
down by 3 noise units over 24 launches); `walk` (Gaussian plus a random walk of half a noise unit a
launch). Each column should hold its bar: false claims <= 5 %, coverage >= 95 %.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpurun.stats import DEFAULT, Look, sequential_look

LAWS = ("gauss", "t3", "drift", "walk")
NOISES = (0.005, 0.01, 0.02, 0.03)
EFFECTS = (1.0, 1.02, 1.05, 1.5, 5.0)


@dataclass(frozen=True)
class Rates:
    """Over all repeats: how often it claimed, how often the interval held, pairs until settled."""

    claimed: float
    covered: float
    mean_pairs: float


class Machine:
    """Throughputs of launches, one after another, under one law of noise."""

    def __init__(self, law: str, noise: float, rng: random.Random) -> None:
        self.law, self.noise, self.rng = law, noise, rng
        self.launches = 0
        self.walked = 0.0

    def launch(self, speed: float) -> float:
        """Throughput of one launch of a program of true speed `speed`."""
        error = self.rng.gauss(0, 1)
        if self.law == "t3":
            chi = sum(self.rng.gauss(0, 1) ** 2 for _ in range(3))
            error /= math.sqrt(chi / 3) * math.sqrt(3)  # unit variance
        elif self.law == "drift":
            error -= 3 * self.launches / 24
        elif self.law == "walk":
            self.walked += self.rng.gauss(0, 0.5)
            error += self.walked
        self.launches += 1
        return speed * math.exp(self.noise * error)


def one_test(machine: Machine, effect: float) -> Look:
    """Run pairs in turn until the test settles."""
    pairs: list[tuple[float, float]] = []
    while True:
        if len(pairs) % 2 == 0:
            baseline = machine.launch(1.0)
            candidate = machine.launch(effect)
        else:
            candidate = machine.launch(effect)
            baseline = machine.launch(1.0)
        pairs.append((baseline, candidate))
        look = sequential_look(pairs)
        if look.settled:
            return look


def simulate(law: str, noise: float, effect: float, repeats: int, seed: int) -> Rates:
    """Error rates of `repeats` tests of one setting."""
    rng = random.Random(f"{law} {noise} {effect} {seed}")
    claimed = covered = pairs = 0
    for _ in range(repeats):
        look = one_test(Machine(law, noise, rng), effect)
        assert look.interval is not None
        claimed += look.significant
        covered += look.interval[0] <= effect <= look.interval[1]
        pairs += look.pairs_used
    return Rates(claimed / repeats, covered / repeats, pairs / repeats)


def main() -> int:
    """Print one line a setting; exit 1 if a bar is missed beyond chance."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    slack = 3 * math.sqrt(0.05 * 0.95 / options.repeats)
    missed = 0
    print(f"looks {DEFAULT.looks}, levels {DEFAULT.levels}, {options.repeats} tests a line")
    print(f"{'law':6} {'noise':>6} {'effect':>7} {'claimed':>8} {'covered':>8} {'pairs':>6}")
    for law in LAWS:
        for noise in NOISES:
            for effect in EFFECTS:
                rates = simulate(law, noise, effect, options.repeats, options.seed)
                bad = rates.covered < 0.95 - slack or (
                    effect == 1.0 and rates.claimed > 0.05 + slack
                )
                missed += bad
                print(
                    f"{law:6} {noise:6.1%} {effect:7.2f} {rates.claimed:8.1%} "
                    f"{rates.covered:8.1%} {rates.mean_pairs:6.1f}{'  MISSED' if bad else ''}"
                )
    print(f"verdict={'missed' if missed else 'held'}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
