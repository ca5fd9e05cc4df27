"""Simulate `gpurun bench --compare REF --from-history`: false regressions, false passes, power.

    python scripts/simulate_from_history.py [--runs 2000] [--quick] [--records 10] [--history 16]

Every comparison goes through the functions of the command: `past_records.last_change` (only records
since the last change of the branch count, the last 10 of them) and
`past_records.judge_new_run`. A branch of
`--history` runs is drawn, one an hour, and a new run that loses so much throughput. `noise` is that
between runs, by a law of `scripts/launch_noise.py`; each run has 5 launches that differ by as much
again.

The bars: of runs that lose nothing at most 1 % regress, of those that lose the threshold (5 %) or
more at most 5 % pass. Caught losses have no bar: what one run can tell depends on the noise. A bar
is missed where the whole 95 % interval (Wilson) is on its wrong side. `none`: the branch changed so
lately, or seems to have, that fewer than 4 records are left, which is exit code 4.

Percent that regress / pass, of 500 comparisons with the last 10 of 16 records (all bars hold):

    noise          0.5 %                     1 %                       5 %
    lost      nothing      5 %          nothing      5 %          nothing      5 %
    gauss    0.0 / 100  97.0 / 2.6     0.0 / 97   44.6 / 1.6     0.0 / 14   1.0 / 3.4
    t3       0.0 / 100  94.4 / 3.6     0.0 / 97   55.6 / 3.2     0.4 / 16   1.6 / 3.8
    drift    0.0 / 100  98.4 / 1.2     0.0 / 92   50.0 / 0.2     0.4 /  4   2.0 / 0.2
    walk     0.0 /  99  91.8 / 3.0     0.2 / 90   30.2 / 3.6     0.2 / 13   1.6 / 4.6
    ar 0.3   0.0 / 100  96.4 / 3.2     0.0 / 97   44.2 / 2.0     0.2 / 12   0.6 / 2.6
    ar 0.6   0.0 / 100  93.6 / 5.4     0.0 / 98   56.8 / 3.2     0.0 / 18   2.0 / 3.6

At 2 % of `gauss`: 0.0 / 47 and 6.6 / 2.2. With 4 records at most 0.8 % regress falsely (600
comparisons) and 4.7 % pass falsely (1,500); of 5 % at 0.5 % of noise 57 (walk) to 82 % are caught.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpurun.bench.history.branch_records import Measured
from gpurun.bench.history.past_records import (
    LEAST_RUNS,
    MOST_RUNS,
    NewRun,
    judge_new_run,
    last_change,
)
from gpurun.pairs.gate import Verdict
from gpurun.records.bench.benchmark import BenchmarkRecord, utc_text
from gpurun.records.bench.metrics import Metric
from scripts.launch_noise import INDEPENDENT, run_errors
from scripts.simulate_pairs import FALSE_PASSES, FALSE_REGRESSIONS, THRESHOLD, wilson

LAUNCHES = 5
START = datetime(2026, 1, 1, tzinfo=timezone.utc)
LAWS = (*INDEPENDENT, "ar 0.3", "ar 0.6")
NOISES = (0.002, 0.005, 0.01, 0.02, 0.05)
SLOWDOWNS = (0.0, THRESHOLD, 0.1)


@dataclass(frozen=True)
class Cell:
    """One law of noise, its size between runs, and the fraction of throughput truly lost."""

    law: str
    noise: float
    slowdown: float


@dataclass(frozen=True)
class Outcome:
    """How the comparisons of a cell ended; None: too few records were left."""

    cell: Cell
    verdicts: Counter[Verdict | None]

    def rate(self, verdict: Verdict | None) -> tuple[float, float, float]:
        """How often it was so, with the 95 % interval."""
        runs = self.verdicts.total()
        return self.verdicts[verdict] / runs, *wilson(self.verdicts[verdict], runs)

    @property
    def missed(self) -> list[str]:
        """The bars that this cell misses beyond chance."""
        missed = []
        if self.cell.slowdown == 0 and self.rate(Verdict.REGRESSION)[1] > FALSE_REGRESSIONS:
            missed.append("FALSE REGRESSIONS")
        if self.cell.slowdown >= THRESHOLD and self.rate(Verdict.PASS)[1] > FALSE_PASSES:
            missed.append("FALSE PASSES")
        return missed


def recorded(hour: int, rates: np.ndarray) -> Measured:
    """A record of that hour whose launches had these throughputs."""
    known = {"id": f"r{hour}", "commit": f"{hour:040x}", "launches": ()}
    known |= {"time": utc_text(START + timedelta(hours=hour))}
    fields = dict.fromkeys(BenchmarkRecord.__dataclass_fields__)
    return Measured(BenchmarkRecord(**{**fields, **known}), tuple(rates.tolist()))


def verdict_of(series: list[Measured], most: int) -> Verdict | None:
    """What the command says of the last of these runs."""
    change = last_change(Metric.THROUGHPUT, series[:-1])
    level = series[0 if change is None else change[0] : -1][-most:]
    if len(level) < LEAST_RUNS:
        return None
    past = [one.run for one in level]
    held = NewRun(Metric.THROUGHPUT, past, series[-1].run, THRESHOLD)
    return judge_new_run([held]).verdict


def simulate(cell: Cell, most: int, history: int, runs: int, seed: int) -> Outcome:
    """The verdicts of `runs` comparisons by throughput."""
    rng = np.random.default_rng([seed, *f"{cell}".encode()])
    between = run_errors(cell.law, runs, history + 1, rng)[:, :, None]
    logs = cell.noise * (between + rng.standard_normal((runs, history + 1, LAUNCHES)))
    logs[:, -1] += np.log(1 - cell.slowdown)
    verdicts: Counter[Verdict | None] = Counter()
    for rates in np.exp(logs):
        verdicts[verdict_of([recorded(i, r) for i, r in enumerate(rates)], most)] += 1
    return Outcome(cell, verdicts)


def cells(quick: bool) -> Iterator[Cell]:
    """All of them, or those that a bar is hardest for and those that show what it can see."""
    for law in LAWS:
        for noise in (0.005, 0.01, 0.05) if quick else NOISES:
            for slowdown in (0.0, THRESHOLD) if quick else SLOWDOWNS:
                yield Cell(law, noise, slowdown)


def line(outcome: Outcome) -> str:
    """One row of the table."""
    cell = outcome.cell
    shown = []
    for verdict in (Verdict.REGRESSION, Verdict.PASS, Verdict.INCONCLUSIVE):
        rate, low, high = outcome.rate(verdict)
        shown.append(f"{rate:7.2%} ({low:6.2%} to {high:7.2%})")
    return (
        f"{cell.law:6} {cell.noise:6.1%} {cell.slowdown:5.0%}  {'  '.join(shown)} "
        f"{outcome.rate(None)[0]:6.1%}  {', '.join(outcome.missed)}"
    ).rstrip()


def main() -> int:
    """Print one line a cell; exit 1 if a bar is missed beyond chance."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--records", type=int, default=MOST_RUNS, help="most that are used")
    parser.add_argument("--history", type=int, default=16, help="runs of the branch")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="fewer noises and losses")
    options = parser.parse_args()
    print(f"the last {options.records} of {options.history} runs, threshold {THRESHOLD:.0%}, "
          f"{options.runs} comparisons a line")  # fmt: skip
    names = ("regression", "pass", "inconclusive")
    print(f"{'law':6} {'noise':>6} {'lost':>5}  {''.join(f'{n:29}' for n in names)} none")
    missed = 0
    for cell in cells(options.quick):
        outcome = simulate(cell, options.records, options.history, options.runs, options.seed)
        missed += bool(outcome.missed)
        print(line(outcome), flush=True)
    print(f"verdict={'missed' if missed else 'held'}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
