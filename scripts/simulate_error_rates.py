"""Simulate the sequential test of `gpurun.stats`: false claims, coverage, pairs needed.

    python scripts/simulate_error_rates.py [--repeats 2000]

Launches run in the order A B, B A, A B, ... as the tuner runs them; for the laws of their noise see
`scripts/launch_noise.py`. Each column should hold its bar: false claims <= 5 %, coverage >= 95 %.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpurun.stats.sequential_test import DEFAULT, LIVE, Look, SequentialPlan, sequential_look
from scripts.launch_noise import INDEPENDENT, paired_errors

NOISES = (0.005, 0.01, 0.02, 0.03)
LIVE_NOISES = (0.005, 0.01, LIVE.prior_sd / math.sqrt(2), LIVE.prior_sd)
"""Of a launch: the third makes pairs as noisy as the prior says, the last twice that variance."""
EFFECTS = (1.0, 1.02, 1.05, 1.5, 5.0)


@dataclass(frozen=True)
class Rates:
    """Over all repeats: how often it claimed, how often the interval held, pairs until settled."""

    claimed: float
    covered: float
    mean_pairs: float


def one_test(rates: Sequence[tuple[float, float]], plan: SequentialPlan) -> Look:
    """Take pair after pair until the test settles."""
    for count in range(1, len(rates) + 1):
        look = sequential_look(rates[:count], plan)
        if look.settled:
            break
    return look


def simulate(
    law: str,
    noise: float,
    effect: float,
    repeats: int,
    seed: int,
    plan: SequentialPlan = DEFAULT,
) -> Rates:
    """Error rates of `repeats` tests of one setting."""
    rng = np.random.default_rng([seed, *f"{law} {noise} {effect}".encode()])
    errors = paired_errors(law, repeats, plan.looks[-1], rng)
    claimed = covered = pairs = 0
    for rates in (np.exp(noise * errors) * (1.0, effect)).tolist():
        look = one_test(rates, plan)
        assert look.interval is not None
        claimed += look.significant
        covered += look.interval[0] <= effect <= look.interval[1]
        pairs += look.pairs_used
    return Rates(claimed / repeats, covered / repeats, pairs / repeats)


def _table(plan: SequentialPlan, noises: Sequence[float], repeats: int, seed: int) -> int:
    """One line a setting; how many miss their bar beyond chance."""
    slack = 3 * math.sqrt(0.05 * 0.95 / repeats)
    missed = 0
    print(f"{'law':6} {'noise':>6} {'effect':>7} {'claimed':>8} {'covered':>8} {'pairs':>6}")
    for law in INDEPENDENT:
        for noise in noises:
            for effect in EFFECTS:
                rates = simulate(law, noise, effect, repeats, seed, plan)
                bad = rates.covered < 0.95 - slack or (
                    effect == 1.0 and rates.claimed > 0.05 + slack
                )
                missed += bad
                print(
                    f"{law:6} {noise:6.1%} {effect:7.2f} {rates.claimed:8.1%} "
                    f"{rates.covered:8.1%} {rates.mean_pairs:6.1f}{'  MISSED' if bad else ''}"
                )
    return missed


def main() -> int:
    """Print one line a setting; exit 1 if a bar is missed beyond chance."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    missed = 0
    for name, plan, noises in (
        ("launches in turn", DEFAULT, NOISES),
        ("live pairs", LIVE, LIVE_NOISES),
    ):
        print(f"{name}: looks {plan.looks}, levels {plan.levels}, {options.repeats} tests a line")
        missed += _table(plan, noises, options.repeats, options.seed)
    print(f"verdict={'missed' if missed else 'held'}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
