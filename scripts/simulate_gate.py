"""Simulate the gate of `gpurun bench --compare`: false regressions, false passes, losses caught.

    python scripts/simulate_gate.py [--live] [--runs 4000] [--max-pairs 16] [--unwidened] [--quick]

Every comparison goes through `gpurun.stats.gate.judge`. For the laws of noise see
`scripts/launch_noise.py`; `ar` has a correlation of 0.3 between neighbouring pairs. Each rate has
its 95 % interval beside it (Wilson). The bars: of trees that lose nothing at most 1 % regress; of
those that lose the threshold (5 %) or more at most 5 % pass; under independent noise of at most 2 %
at least 95 % of losses of 5 % are caught within 16 pairs. A bar is missed where the whole interval
is on its wrong side. Losses below the threshold have no bar, since both verdicts can be right:
they get a quarter of the runs. Correlated noise comes nearest to its bars: it gets four times as
many where there is one.
`--unwidened` leaves out all that guards against correlation: the levels as they are.

`--live` simulates live pairs. Their noise is given as the standard deviation of ln of the ratio, in
units of the prior's: the bars hold to twice that, and up to a variance twice the prior's at least
95 % of losses of 5 % are to be caught. `turns` is noise of which half the variance comes from the
turns, and is known as their error.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpurun.records.bench.metrics import Metric
from gpurun.stats.gate import SPEED_PRIOR, GatePlan, Verdict, judge
from gpurun.stats.gated_metric import Gated
from scripts.launch_noise import CORRELATED, INDEPENDENT, paired_errors

NOISES = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
SLOWDOWNS = (0.0, 0.01, 0.03, 0.05, 0.1)
THRESHOLD = 0.05
FALSE_REGRESSIONS, FALSE_PASSES, CAUGHT = 0.01, 0.05, 0.95
LIVE_LAWS = ("gauss", "t3", "turns")
PRIOR_UNITS = (0.25, 0.5, 1.0, math.sqrt(2), 2.0, 2.5)
"""Of the prior's standard deviation; the variance is twice the prior's at the fourth."""
LIVE_SLOWDOWNS = (0.0, 0.05, 0.08)


@dataclass(frozen=True)
class Cell:
    """One law of noise, its size in one launch, and the fraction of throughput truly lost."""

    law: str
    noise: float
    slowdown: float
    live: bool = False

    @property
    def of_prior(self) -> float:
        """The noise of a live pair in units of the prior's standard deviation."""
        return math.sqrt(2) * self.noise / SPEED_PRIOR.sd

    @property
    def barred(self) -> bool:
        """Whether the errors have bars here."""
        return not self.live or self.of_prior < 2.1

    @property
    def to_be_caught(self) -> bool:
        """Whether nearly all losses of the threshold are to be found."""
        if self.live:
            return self.of_prior < 1.5
        return self.law in INDEPENDENT and self.noise <= 0.02

    def runs(self, usual: int) -> int:
        """How many of them it takes to tell the rate from its bar."""
        if 0 < self.slowdown < THRESHOLD:
            return usual // 4
        return 4 * usual if self.law == CORRELATED and self.slowdown <= THRESHOLD else usual


@dataclass(frozen=True)
class Outcome:
    """How the comparisons of a cell ended."""

    cell: Cell
    verdicts: Counter[Verdict]
    pairs: int

    @property
    def runs(self) -> int:
        return self.verdicts.total()

    def rate(self, verdict: Verdict) -> float:
        return self.verdicts[verdict] / self.runs

    def interval(self, verdict: Verdict) -> tuple[float, float]:
        """The 95 % interval of that rate."""
        return wilson(self.verdicts[verdict], self.runs)

    @property
    def missed(self) -> list[str]:
        """The bars that this cell misses beyond chance."""
        missed: list[str] = []
        cell = self.cell
        if not cell.barred:
            return missed
        if cell.slowdown == 0 and self.interval(Verdict.REGRESSION)[0] > FALSE_REGRESSIONS:
            missed.append("FALSE REGRESSIONS")
        if cell.slowdown >= THRESHOLD and self.interval(Verdict.PASS)[0] > FALSE_PASSES:
            missed.append("FALSE PASSES")
        caught = self.interval(Verdict.REGRESSION)[1]
        if cell.to_be_caught and cell.slowdown >= THRESHOLD and caught < CAUGHT:
            missed.append("TOO FEW CAUGHT")
        return missed


def wilson(hits: int, runs: int) -> tuple[float, float]:
    """The 95 % interval of a proportion (Wilson's score interval)."""
    z2 = 1.96**2
    center = (hits + z2 / 2) / (runs + z2)
    half = math.sqrt(z2 * (hits * (runs - hits) / runs + z2 / 4)) / (runs + z2)
    return max(0.0, center - half), min(1.0, center + half)


def simulate(cell: Cell, plan: GatePlan, runs: int, seed: int) -> Outcome:
    """The verdicts of `runs` comparisons by throughput."""
    rng = np.random.default_rng([seed, *f"{cell}".encode()])
    law = "gauss" if cell.law == "turns" else cell.law
    errors = paired_errors(law, runs, plan.looks[-1], rng)
    known = [cell.noise] * plan.looks[-1] if cell.law == "turns" else []
    rates = np.exp(cell.noise * errors) * (1.0, 1.0 - cell.slowdown)
    verdicts: Counter[Verdict] = Counter()
    pairs = 0
    for figures in rates.tolist():
        result = judge([Gated(Metric.THROUGHPUT, figures, THRESHOLD, known)], plan)
        verdicts[result.verdict] += 1
        pairs += result.pairs_used
    return Outcome(cell, verdicts, pairs)


def cells(quick: bool, live: bool) -> Iterator[Cell]:
    """All of them, or those that a bar is hardest for."""
    if live:
        for law in LIVE_LAWS:
            for units in PRIOR_UNITS[2::2] if quick else PRIOR_UNITS:
                for slowdown in LIVE_SLOWDOWNS:
                    yield Cell(law, units * SPEED_PRIOR.sd / math.sqrt(2), slowdown, True)
        return
    for law in (*INDEPENDENT, CORRELATED):
        for noise in (0.02, 0.1) if quick else NOISES:
            for slowdown in (0.0, THRESHOLD) if quick else SLOWDOWNS:
                yield Cell(law, noise, slowdown)


def line(outcome: Outcome) -> str:
    """One row of the table."""
    cell = outcome.cell
    rates = []
    for verdict in (Verdict.REGRESSION, Verdict.PASS, Verdict.INCONCLUSIVE):
        low, high = outcome.interval(verdict)
        rates.append(f"{outcome.rate(verdict):7.2%} ({low:6.2%} to {high:7.2%})")
    noise = math.sqrt(2) * cell.noise if cell.live else cell.noise
    return (
        f"{cell.law:6} {noise:6.1%} {cell.slowdown:5.0%}  {'  '.join(rates)} "
        f"{outcome.pairs / outcome.runs:6.1f}  {', '.join(outcome.missed)}"
    ).rstrip()


def main() -> int:
    """Print one line a cell; exit 1 if a bar is missed beyond chance."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=4000)
    parser.add_argument("--max-pairs", type=int, default=16)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--unwidened", action="store_true")
    parser.add_argument("--quick", action="store_true", help="only what a bar is hardest for")
    parser.add_argument("--live", action="store_true", help="live pairs, not launches in turn")
    options = parser.parse_args()
    plan = GatePlan.up_to(options.max_pairs)
    if options.live:
        plan = plan.of_live_pairs
    if options.unwidened:
        plan = replace(plan, caution=0.0, believed=0.0)
    print(f"looks {plan.looks}, threshold {THRESHOLD:.0%}, {options.runs} runs where a bar is")
    names = ("regression", "pass", "inconclusive")
    print(f"{'law':6} {'noise':>6} {'lost':>5}  {''.join(f'{n:29}' for n in names)}pairs")
    missed = 0
    for cell in cells(options.quick, options.live):
        outcome = simulate(cell, plan, cell.runs(options.runs), options.seed)
        missed += bool(outcome.missed)
        print(line(outcome), flush=True)
    print(f"verdict={'missed' if missed else 'held'}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
