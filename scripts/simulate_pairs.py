"""Simulate the two plans that decide pairs: the tuner's gain test and the gate of `gpurun bench`.

    python scripts/simulate_pairs.py [--runs 2000] [--plan gain|gate] [--quick] [--beyond]
    python scripts/simulate_pairs.py --recorded [--runs 2000]

Every run goes through `gpurun.pairs.gain.look` or `gpurun.pairs.gate.judge`, pair by pair, until
the plan stops. A case says how pairs of equal launches truly differ: by 0.5, 1, 2.5 or 4 times what
is assumed of them, or by 7, 12 and 20 % (`--beyond`: more than any bar asks for), by one law:

* `gauss`; `t3`: heavy tails; `ar`: neighbouring pairs are correlated by 0.3.
* `biased`: as `ar`, and one pair in ten is displaced by five deviations while its turns claim a
  third of the usual error; `one-sided`: the same, always towards the same side.
* `first`: as `gauss`, and what is launched first is faster by 4 %, as recorded of minGPT. The sides
  change places from pair to pair.
* `turns`: as `gauss`, and each pair takes turns of correlated noise until
  `gpurun.pairs.turn_taking.TurnLimits` ends them by the error that they show.
* `drift`, `walk`: of launches in turn, see `launch_noise.py`.

But for `turns` the errors within live pairs are half of what is assumed on average, and vary by a
factor of 4.5 either way. Launches in turn have none. Cases of the kind `mixed` begin with one to
four live pairs, and the others are in turn; the second multiple is theirs.

`--recorded` takes the pairs out of `scripts/recordings/live_pairs.json` instead: those of one
workload in random order, with alternating signs as the sides change places; the gate may take
twelve.

The bars: no gain claimed in more than 5 %, intervals that hold the truth in at least 93 %; of equal
trees at most 1 % regress, of trees that lose the threshold at most 5 % pass. A bar is missed where
the whole 95 % interval of a rate (Wilson) lies on its wrong side.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpurun.pairs import gain, gate, turn_taking
from gpurun.pairs.estimate import IN_TURN_SD, LIVE_SD, reading
from gpurun.pairs.gate import Gated, GatePlan, Verdict, judge
from gpurun.pairs.turn_ratio import Round, turn_ratio
from gpurun.pairs.turn_taking import TurnLimits
from gpurun.records.bench.metrics import Metric
from gpurun.records.messages.turns import Turn
from scripts.launch_noise import paired_errors

RECORDINGS = Path(__file__).resolve().parent / "recordings" / "live_pairs.json"
MULTIPLES = (0.5, 1.0, 2.5, 4.0)
BEYOND = (0.07, 0.12, 0.20)
LAWS = {
    "live": ("gauss", "t3", "ar", "biased", "one-sided", "first", "turns"),
    "in turn": ("gauss", "t3", "ar", "drift", "walk"),
    "mixed": ("gauss", "t3", "ar", "biased"),
}
HARDEST = {"live": ("ar", "biased", "one-sided"), "in turn": ("ar", "walk"), "mixed": ("ar",)}
FIRST_IS_FASTER = 0.04
EFFECTS = (1.0, 1.15, 3.0)
SLOWDOWNS = (0.0, 0.05, 0.07, 0.08, 0.12, 0.20)
THRESHOLD = 0.05
FALSE_CLAIMS, COVERAGE, FALSE_REGRESSIONS, FALSE_PASSES = 0.05, 0.93, 0.01, 0.05


@dataclass(frozen=True)
class Case:
    """How pairs of equal launches truly differ: the kind of pairs, times what is assumed of them,
    by a law. `later`: the multiple of launches in turn that follow live pairs (`mixed`)."""

    kind: str
    multiple: float
    law: str
    later: float | None = None

    @property
    def label(self) -> str:
        """The kind with its multiples."""
        more = "" if self.later is None else f", {self.later:g}"
        return f"{self.kind} {self.multiple:.3g}{more}"


@dataclass(frozen=True)
class Draws:
    """Pairs without any effect, shape (runs, pairs): logarithms, and the errors that they claim,
    NaN of launches in turn."""

    logs: NDArray[np.float64]
    errors: NDArray[np.float64]

    def each(self) -> Iterator[tuple[list[float], list[float | None]]]:
        """Logarithms and errors of one run after another."""
        for logs, errors in zip(self.logs.tolist(), self.errors.tolist(), strict=True):
            yield logs, [None if math.isnan(error) else error for error in errors]


def draw(case: Case, runs: int, pairs: int, seed: int) -> Draws:
    """Pairs of equal launches in this case."""
    rng = np.random.default_rng([seed, *f"{case.label} {case.law}".encode()])
    if case.kind == "in turn":
        return _in_turn(case, runs, pairs, rng)
    live = _live(case, runs, pairs, rng)
    if case.kind == "live":
        return live
    law = "ar" if case.law == "biased" else case.law
    in_turn = _in_turn(Case("in turn", case.later or case.multiple, law), runs, pairs, rng)
    begins = rng.integers(1, 5, (runs, 1)) <= np.arange(pairs)
    return Draws(
        np.where(begins, in_turn.logs, live.logs), np.where(begins, in_turn.errors, live.errors)
    )


def _in_turn(case: Case, runs: int, pairs: int, rng: np.random.Generator) -> Draws:
    sides = paired_errors(case.law, runs, pairs, rng)
    logs = case.multiple * IN_TURN_SD * (sides[:, :, 0] - sides[:, :, 1]) / math.sqrt(2)
    return Draws(logs, np.full((runs, pairs), math.nan))


def _live(case: Case, runs: int, pairs: int, rng: np.random.Generator) -> Draws:
    displaced = case.law in ("biased", "one-sided")
    law = "ar" if displaced else case.law if case.law in ("t3", "ar") else "gauss"
    sides, sd = paired_errors(law, runs, pairs, rng), case.multiple * LIVE_SD
    logs = sd * (sides[:, :, 0] - sides[:, :, 1]) / math.sqrt(2)
    if case.law == "turns":
        pool = np.array(turned_pairs())
        taken = pool[rng.integers(0, len(pool), (runs, pairs))]
        return Draws(logs + taken[:, :, 0], taken[:, :, 1])
    errors = 0.5 * LIVE_SD * np.exp(rng.uniform(-1.5, 1.5, (runs, pairs)))
    logs = logs + errors * rng.standard_normal((runs, pairs))
    if displaced:
        hit = rng.random((runs, pairs)) < 0.1
        signs = rng.choice([-1, 1], (runs, pairs)) if case.law == "biased" else 1
        logs, errors = np.where(hit, logs + 5 * sd * signs, logs), np.where(hit, errors / 3, errors)
    if case.law == "first":
        logs = logs + FIRST_IS_FASTER * np.where(np.arange(pairs) % 2, -1, 1)
    return Draws(logs, errors)


@functools.cache
def turned_pairs(count: int = 1500) -> list[tuple[float, float]]:
    """Logarithm and error of pairs whose turns end as those of real ones do.

    A step's time is the same on both sides. A turn takes 15 to 500 ms, with noise of 0.2 to 20 %
    that is correlated by 0.3 from turn to turn.
    """
    rng, found = random.Random(1), []
    with mock.patch.object(turn_taking.time, "monotonic") as clock:
        while len(found) < count:
            seconds = math.exp(rng.uniform(math.log(0.015), math.log(0.5)))
            noise = math.exp(rng.uniform(math.log(0.002), math.log(0.2)))
            enough, clock.return_value = TurnLimits().enough(), 0.0
            rounds: list[Round] = []
            last = [0.0, 0.0]
            while not enough(rounds):
                last = [0.3 * one + math.sqrt(1 - 0.3**2) * rng.gauss(0, noise) for one in last]
                turns = [Turn(10, round(1e9 * seconds * math.exp(one))) for one in last]
                rounds.append(Round(*turns))
                clock.return_value += sum(turn.nanoseconds for turn in turns) / 1e9
            ratio = turn_ratio(rounds)
            assert ratio is not None
            found.append((ratio.log, ratio.error))
    return found


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
    for logs, errors in drawn.each():
        readings = [
            reading(Metric.THROUGHPUT, log + math.log(effect), error)
            for log, error in zip(logs, errors, strict=True)
        ]
        for n in gain.LEVELS:
            look = gain.look(readings[:n])
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
    drawn = draw(case, runs, gate.DEFAULT.looks[-1], seed)
    counts: Counter[Verdict] = Counter()
    pairs = 0
    for logs, errors in drawn.each():
        figures = [(1.0, (1 - slowdown) * math.exp(-log)) for log in logs]
        result = judge([Gated(Metric.THROUGHPUT, figures, THRESHOLD, errors)])
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
        first = draws.choice((0, 1))
        logs = [row["log"] * (-1) ** (first + place) for place, row in enumerate(taken)]
        lost = 0.08 * (number % 2)
        figures = [(1.0, (1 - lost) * math.exp(-log)) for log in logs]
        errors = [row["error"] for row in taken]
        result = judge([Gated(Metric.THROUGHPUT, figures, THRESHOLD, errors)], plan)
        found[number % 2][result.verdict] += 1
        pairs += result.pairs_used
    return *found, pairs / (2 * runs)


def cases(quick: bool, beyond: bool) -> Iterator[Case]:
    """All of them, or those that bars are hardest for; or those beyond all bars."""
    laws = HARDEST if quick or beyond else LAWS
    if beyond:
        yield from (Case("live", sd / LIVE_SD, law) for law in laws["live"] for sd in BEYOND)
        yield from (
            Case("in turn", sd / IN_TURN_SD, law) for law in laws["in turn"] for sd in BEYOND
        )
        return
    multiples = MULTIPLES[1::2] if quick else MULTIPLES
    yield from (Case(k, m, law) for k in ("live", "in turn") for law in laws[k] for m in multiples)
    both = [(m, later) for m in (1.0, 4.0) for later in (1.0, 4.0)]
    yield from (Case("mixed", m, law, later) for law in laws["mixed"] for m, later in both)


def _rate(hits: int, runs: int) -> str:
    return f"{hits / runs:6.1%}"


def gain_table(case: Case, runs: int) -> tuple[str, bool]:
    """A line of this case, and whether a bar is missed."""
    found = [simulate_gain(case, effect, runs) for effect in EFFECTS]
    bad = wilson(found[0].claimed, runs)[0] > FALSE_CLAIMS
    bad = bad or any(wilson(one.covered, runs)[1] < COVERAGE for one in found)
    shown = "  ".join(
        f"{_rate(one.covered, runs)} {_rate(one.claimed, runs)} {one.pairs / runs:4.1f}"
        for one in found
    )
    return f"{_rate(found[0].claimed, runs)} | {shown}", bad


def gate_table(case: Case, runs: int) -> tuple[str, bool]:
    """A line of this case, and whether a bar is missed."""
    found = [simulate_gate(case, slowdown, runs) for slowdown in SLOWDOWNS]
    bad = wilson(found[0].counts[Verdict.REGRESSION], runs)[0] > FALSE_REGRESSIONS
    passes = (one.counts[Verdict.PASS] for one in found[1:])
    bad = bad or any(wilson(hits, runs)[0] > FALSE_PASSES for hits in passes)
    shown = "  ".join(
        f"{_rate(one.counts[Verdict.REGRESSION], runs)} "
        f"{_rate(one.counts[Verdict.PASS], runs)} {one.pairs / runs:4.1f}"
        for one in found
    )
    return shown, bad


TABLES = {
    "gain": (gain_table, "claimed without one | held the truth, claimed, pairs at ×1, ×1.15, ×3"),
    "gate": (gate_table, "regression, pass, pairs of trees that lose 0, 5, 7, 8, 12 and 20 %"),
}


def main() -> int:
    """Print one line a case; exit 1 if a bar is missed beyond chance."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--plan", choices=tuple(TABLES))
    parser.add_argument("--quick", action="store_true", help="only what bars are hardest for")
    parser.add_argument("--beyond", action="store_true", help="launches that differ by 7 to 20 %%")
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
    for plan in TABLES if options.plan is None else (options.plan,):
        table, title = TABLES[plan]
        print(f"{plan}: {title}")
        for case in cases(options.quick, options.beyond):
            line, bad = table(case, options.runs)
            missed += bad
            print(f"{case.label:15} {case.law:9} {line}{'  MISSED' if bad else ''}", flush=True)
    print(f"verdict={'missed' if missed else 'held'}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
