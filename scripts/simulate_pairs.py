"""Simulate the two plans that decide pairs: the tuner's gain test and the gate of `gpurun bench`.

    python scripts/simulate_pairs.py [--runs 2000] [--plan gain|gate] [--quick] [--recorded]

Every run goes through `gpurun.pairs.gain.look` or `gpurun.pairs.gate.judge`, pair by pair, until
the plan stops. A case says how pairs of equal launches truly differ: by 0.5, 1, 2.5 or 4 times the
prior; normally, with heavy tails (`t3`), with a correlation of 0.3 between neighbours (`ar`), or so
and one pair in ten displaced by five deviations while its turns claim a third of the usual error
(`biased`). The errors within pairs are half the prior on average, and vary by a factor of 4.5
either way. Launches in turn have none, and drift as well (`drift`, `walk`: see `launch_noise.py`).

`--recorded` takes the pairs out of `scripts/recordings/live_pairs.json` instead: those of one
workload, with either sign, in random order; the gate may take twelve.

The bars: no gain claimed in more than 5 %, intervals that hold the truth in at least 93 %; of equal
trees at most 1 % regress, of trees that lose the threshold at most 5 % pass. A bar is missed where
the whole 95 % interval of a rate (Wilson) lies on its wrong side.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpurun.pairs import gain, gate
from gpurun.pairs.estimate import IN_TURN, LIVE, Prior, Reading
from gpurun.pairs.gate import Gated, GatePlan, Verdict, judge
from gpurun.records.bench.metrics import Metric
from scripts.launch_noise import paired_errors

RECORDINGS = Path(__file__).resolve().parent / "recordings" / "live_pairs.json"
PRIORS = {"live": LIVE, "in turn": IN_TURN}
MULTIPLES = (0.5, 1.0, 2.5, 4.0)
LAWS = ("gauss", "t3", "ar", "biased")
IN_TURN_LAWS = ("gauss", "t3", "ar", "drift", "walk")
EFFECTS = (1.0, 1.15, 3.0)
SLOWDOWNS = (0.0, 0.05, 0.08)
THRESHOLD = 0.05
FALSE_CLAIMS, COVERAGE, FALSE_REGRESSIONS, FALSE_PASSES = 0.05, 0.93, 0.01, 0.05


@dataclass(frozen=True)
class Case:
    """How pairs of equal launches truly differ: the class with its prior, times this, by a law."""

    kind: str
    multiple: float
    law: str

    @property
    def prior(self) -> Prior:
        """What the plan assumes."""
        return PRIORS[self.kind]


@dataclass(frozen=True)
class Draws:
    """Pairs without any effect, shape (runs, pairs): logarithms, and the errors that they claim."""

    logs: NDArray[np.float64]
    errors: NDArray[np.float64]


def draw(case: Case, runs: int, pairs: int, seed: int) -> Draws:
    """Pairs of equal launches in this case."""
    rng = np.random.default_rng([seed, *f"{case}".encode()])
    law = "ar" if case.law == "biased" else case.law
    sides = paired_errors(law, runs, pairs, rng)
    logs = case.multiple * case.prior.sd * (sides[:, :, 0] - sides[:, :, 1]) / math.sqrt(2)
    if case.kind == "in turn":
        return Draws(logs, np.zeros((runs, pairs)))
    errors = 0.5 * case.prior.sd * np.exp(rng.uniform(-1.5, 1.5, (runs, pairs)))
    logs = logs + errors * rng.standard_normal((runs, pairs))
    if case.law == "biased":
        hit = rng.random((runs, pairs)) < 0.1
        away = 5 * case.multiple * case.prior.sd * rng.choice([-1, 1], (runs, pairs))
        logs, errors = np.where(hit, logs + away, logs), np.where(hit, errors / 3, errors)
    return Draws(logs, errors)


def wilson(hits: int, runs: int) -> tuple[float, float]:
    """The 95 % interval of a proportion (Wilson's score interval)."""
    z2 = 1.96**2
    center = (hits + z2 / 2) / (runs + z2)
    half = math.sqrt(z2 * (hits * (runs - hits) / runs + z2 / 4)) / (runs + z2)
    return max(0.0, center - half), min(1.0, center + half)


@dataclass(frozen=True)
class Gains:
    """Of so many gain tests: how many claimed a change, held the truth, and pairs in all."""

    runs: int
    claimed: int
    covered: int
    pairs: int


def simulate_gain(case: Case, effect: float, runs: int, seed: int = 1) -> Gains:
    """Gain tests of a candidate that is `effect` times as fast."""
    drawn = draw(case, runs, gain.MOST_PAIRS, seed)
    claimed = covered = pairs = 0
    for logs, errors in zip(drawn.logs + math.log(effect), drawn.errors, strict=True):
        readings = [Reading(*pair) for pair in zip(logs.tolist(), errors.tolist(), strict=True)]
        for n in gain.LEVELS:
            look = gain.look(readings[:n], case.prior)
            if look.settled:
                break
        assert look.interval is not None
        claimed += look.significant
        covered += look.interval[0] <= effect <= look.interval[1]
        pairs += look.pairs_used
    return Gains(runs, claimed, covered, pairs)


@dataclass(frozen=True)
class Verdicts:
    """Of so many comparisons: the verdicts, and pairs in all."""

    runs: int
    counts: Counter[Verdict]
    pairs: int


def simulate_gate(case: Case, slowdown: float, runs: int, seed: int = 1) -> Verdicts:
    """Comparisons with a tree that has lost this fraction of throughput."""
    drawn = draw(case, runs, gate.LOOKS[-1], seed)
    counts: Counter[Verdict] = Counter()
    pairs = 0
    for logs, errors in zip(drawn.logs, drawn.errors, strict=True):
        figures = [(1.0, (1 - slowdown) * math.exp(-log)) for log in logs.tolist()]
        one = Gated(Metric.THROUGHPUT, figures, THRESHOLD, errors.tolist(), case.prior)
        result = judge([one])
        counts[result.verdict] += 1
        pairs += result.pairs_used
    return Verdicts(runs, counts, pairs)


def recorded(runs: int, seed: int = 1) -> tuple[Counter[Verdict], Counter[Verdict], float]:
    """The verdicts on equal trees and on ones that lose 8 %, by recorded pairs; mean pairs.

    A workload is drawn in proportion to its pairs, of which there must be four.
    """
    rows = json.loads(RECORDINGS.read_text())
    kinds = Counter(row["kind"] for row in rows)
    by_kind = {k: [r for r in rows if r["kind"] == k] for k, n in kinds.items() if n >= 4}
    draws, plan = random.Random(seed), GatePlan.up_to(12)
    found: tuple[Counter[Verdict], Counter[Verdict]] = (Counter(), Counter())
    pairs = 0
    for number in range(2 * runs):
        pool = draws.choices(list(by_kind.values()), [len(v) for v in by_kind.values()])[0]
        taken = draws.choices(pool, k=12)
        logs = [draws.choice((-1, 1)) * row["log"] for row in taken]
        lost = 0.08 * (number % 2)
        figures = [(1.0, (1 - lost) * math.exp(-log)) for log in logs]
        errors = [row["error"] for row in taken]
        result = judge([Gated(Metric.THROUGHPUT, figures, THRESHOLD, errors, LIVE)], plan)
        found[number % 2][result.verdict] += 1
        pairs += result.pairs_used
    return *found, pairs / (2 * runs)


def cases(quick: bool) -> Iterator[Case]:
    """All of them, or those that bars are hardest for."""
    for kind in PRIORS:
        laws = IN_TURN_LAWS if kind == "in turn" else LAWS
        for law in ("ar", laws[-1]) if quick else laws:
            for multiple in MULTIPLES[1::2] if quick else MULTIPLES:
                yield Case(kind, multiple, law)


def _rate(hits: int, runs: int) -> str:
    return f"{hits / runs:6.1%}"


def gain_table(runs: int, quick: bool) -> int:
    """Print a line a case; how many bars are missed."""
    print("gain: claimed without one | held the truth, and mean pairs, at ×1, ×1.15 and ×3")
    missed = 0
    for case in cases(quick):
        found = [simulate_gain(case, effect, runs) for effect in EFFECTS]
        bad = wilson(found[0].claimed, runs)[0] > FALSE_CLAIMS
        bad = bad or any(wilson(one.covered, runs)[1] < COVERAGE for one in found)
        missed += bad
        shown = "  ".join(
            f"{_rate(one.covered, runs)} {_rate(one.claimed, runs)} {one.pairs / runs:4.1f}"
            for one in found
        )
        print(f"{case.kind:8}{case.multiple:4} {case.law:7} {_rate(found[0].claimed, runs)} | "
              f"{shown}{'  MISSED' if bad else ''}", flush=True)  # fmt: skip
    return missed


def gate_table(runs: int, quick: bool) -> int:
    """Print a line a case; how many bars are missed."""
    print("gate: regression, pass, mean pairs of trees that lose 0, 5 and 8 %")
    missed = 0
    for case in cases(quick):
        found = [simulate_gate(case, slowdown, runs) for slowdown in SLOWDOWNS]
        bad = wilson(found[0].counts[Verdict.REGRESSION], runs)[0] > FALSE_REGRESSIONS
        passes = (one.counts[Verdict.PASS] for one in found[1:])
        bad = bad or any(wilson(hits, runs)[0] > FALSE_PASSES for hits in passes)
        missed += bad
        shown = "  ".join(
            f"{_rate(one.counts[Verdict.REGRESSION], runs)} "
            f"{_rate(one.counts[Verdict.PASS], runs)} {one.pairs / runs:4.1f}"
            for one in found
        )
        print(f"{case.kind:8}{case.multiple:4} {case.law:7} {shown}{'  MISSED' if bad else ''}",
              flush=True)  # fmt: skip
    return missed


def main() -> int:
    """Print one line a case; exit 1 if a bar is missed beyond chance."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--plan", choices=("gain", "gate"))
    parser.add_argument("--quick", action="store_true", help="only what bars are hardest for")
    parser.add_argument("--recorded", action="store_true")
    options = parser.parse_args()
    if options.recorded:
        equal, slower, pairs = recorded(options.runs)
        for what, counts in (("equal", equal), ("8 % lost", slower)):
            shown = ", ".join(f"{v.value} {counts[v] / options.runs:.2%}" for v in counts)
            print(f"{what}: {shown}")
        print(f"pairs: {pairs:.1f}")
        return 0
    missed = 0
    if options.plan != "gate":
        missed += gain_table(options.runs, options.quick)
    if options.plan != "gain":
        missed += gate_table(options.runs, options.quick)
    print(f"verdict={'missed' if missed else 'held'}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
