"""Simulate the two plans that decide pairs: the tuner's gain test and the gate of `gpurun bench`.

    python scripts/simulate_pairs.py [--runs 2000] [--plan gain|gate] [--quick] [--beyond]
                                     [--work /tmp/pairs]
    python scripts/simulate_pairs.py --recorded [--runs 2000]

Every run goes through `gpurun.pairs.gain.look` or `gpurun.pairs.gate.judge`, pair by pair, until
the plan stops. A case says how pairs of equal launches truly differ: by 0.5, 1, 2.5 or 4 times what
is assumed of them, or by 7, 12 and 20 % (`--beyond`: more than any bar asks for), by one law:

* `gauss`; `t3`: heavy tails; `ar`: neighbouring pairs are correlated by 0.3.
* `biased`: as `ar`, and one pair in ten is displaced by five deviations while its turns claim a
  third of the usual error; `one-sided`: the same, always towards the same side.
* `first`: as `gauss`, and what is launched first is faster by 4 %, as recorded of minGPT; for pairs
  that are not loose by a fifth of that. The sides change places from pair to pair.
* `turns`: as `gauss`, and each pair takes turns of correlated noise until
  `gpurun.pairs.turn_taking.TurnLimits` ends them by the error that they show.
* `drift`, `walk`: of launches in turn, see `launch_noise.py`.

But for `turns` the errors within live pairs are half of what is assumed on average, and vary by a
factor of 4.5 either way. Launches in turn have none. `loose` are live pairs of trainings whose GPU
host or loader hold up. Cases of the kind `mixed` begin with one to four live pairs, which are not
loose, and the others are in turn; the second multiple is theirs.

`--recorded` takes the pairs out of `scripts/recordings/live_pairs.json` instead: those of one
workload in random order, with alternating signs as the sides change places; the gate may take
twelve.

A line is printed for each case, and at the end the table of docs/LIVE_PAIRS.md, with the worst law
of each row and 95 % intervals (binomial, Wilson). With `--work` each figure is kept in a file of
that folder at once, and after an interruption the same command goes on where it was (of other code,
name another folder). It asks for nothing, so that it can run in the background: 2000 runs take some
minutes on one core.

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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from unittest import mock

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpurun.pairs import gain, gate, turn_taking
from gpurun.pairs.estimate import IN_TURN_SD, LIVE_SD, LOOSE_SD, reading
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
    "loose": ("gauss", "t3", "ar", "biased", "one-sided", "first", "turns"),
    "in turn": ("gauss", "t3", "ar", "drift", "walk"),
    "mixed": ("gauss", "t3", "ar", "biased"),
}
HARDEST = {
    "live": ("ar", "biased", "one-sided"),
    "loose": ("ar", "biased", "one-sided"),
    "in turn": ("ar", "walk"),
    "mixed": ("ar",),
}
FIRST_IS_FASTER = 0.04 / LOOSE_SD
"""In units of what is assumed."""
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

    @property
    def shown(self) -> str:
        """As the table names it."""
        more = "" if self.later is None else f" and {self.later:g}"
        return f"{self.kind} × {self.multiple:.3g}{more}"


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
    if case.kind != "mixed":
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
    assumed = LOOSE_SD if case.kind == "loose" else LIVE_SD
    sides, sd = paired_errors(law, runs, pairs, rng), case.multiple * assumed
    logs = sd * (sides[:, :, 0] - sides[:, :, 1]) / math.sqrt(2)
    if case.law == "turns":
        pool = np.array(turned_pairs())
        taken = pool[rng.integers(0, len(pool), (runs, pairs))]
        return Draws(logs + taken[:, :, 0], taken[:, :, 1])
    errors = 0.5 * assumed * np.exp(rng.uniform(-1.5, 1.5, (runs, pairs)))
    logs = logs + errors * rng.standard_normal((runs, pairs))
    if displaced:
        hit = rng.random((runs, pairs)) < 0.1
        signs = rng.choice([-1, 1], (runs, pairs)) if case.law == "biased" else 1
        logs, errors = np.where(hit, logs + 5 * sd * signs, logs), np.where(hit, errors / 3, errors)
    if case.law == "first":
        logs = logs + FIRST_IS_FASTER * assumed * np.where(np.arange(pairs) % 2, -1, 1)
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
            reading(Metric.THROUGHPUT, log + math.log(effect), error, case.kind == "loose")
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
        loose = [case.kind == "loose"] * len(figures)
        result = judge([Gated(Metric.THROUGHPUT, figures, THRESHOLD, errors, loose)])
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
        loose = [row.get("loose", False) for row in taken]
        result = judge([Gated(Metric.THROUGHPUT, figures, THRESHOLD, errors, loose)], plan)
        found[number % 2][result.verdict] += 1
        pairs += result.pairs_used
    return *found, pairs / (2 * runs)


def cases(quick: bool, beyond: bool) -> Iterator[Case]:
    """All of them, or those that bars are hardest for; or those beyond all bars."""
    laws = HARDEST if quick or beyond else LAWS
    if beyond:
        yield from (Case("loose", sd / LOOSE_SD, law) for law in laws["loose"] for sd in BEYOND)
        yield from (
            Case("in turn", sd / IN_TURN_SD, law) for law in laws["in turn"] for sd in BEYOND
        )
        return
    multiples = MULTIPLES[1::2] if quick else MULTIPLES
    kinds = ("live", "loose", "in turn")
    yield from (Case(kind, m, law) for kind in kinds for law in laws[kind] for m in multiples)
    both = [(m, later) for m in (1.0, 4.0) for later in (1.0, 4.0)]
    yield from (Case("mixed", m, law, later) for law in laws["mixed"] for m, later in both)


Cell = dict[str, int]
"""Of so many runs: how many claimed and held the truth, or got each verdict; pairs in all."""
EACH = {"gain": EFFECTS, "gate": SLOWDOWNS}
TITLES = {
    "gain": "claimed, held the truth, pairs at ×1, ×1.15, ×3",
    "gate": "regression, pass, pairs of trees that lose 0, 5, 7, 8, 12 and 20 %",
}
FIRST, SECOND = {"gain": "claimed", "gate": "regression"}, {"gain": "covered", "gate": "pass"}


@dataclass
class Simulated:
    """Cells by plan, case and effect. `kept`: the file that holds them, and gives them back."""

    runs: int
    kept: Path | None
    cells: dict[str, Cell] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kept is not None and self.kept.exists():
            for line in self.kept.read_text().splitlines():
                self.cells |= json.loads(line)

    def cell(self, plan: str, case: Case, effect: float) -> Cell:
        """It, simulated unless it is known."""
        name = f"{plan} {case.label} {case.law} {effect} {self.runs}"
        if name not in self.cells:
            self.cells[name] = simulate(plan, case, effect, self.runs)
            if self.kept is not None:
                with self.kept.open("a") as file:
                    file.write(json.dumps({name: self.cells[name]}) + "\n")
        return self.cells[name]

    def missed(self, plan: str, case: Case) -> bool:
        """Whether a bar is missed beyond chance."""
        equal, *others = (self.cell(plan, case, effect) for effect in EACH[plan])
        most = FALSE_CLAIMS if plan == "gain" else FALSE_REGRESSIONS
        if wilson(equal[FIRST[plan]], self.runs)[0] > most:
            return True
        if plan == "gain":
            return any(wilson(x["covered"], self.runs)[1] < COVERAGE for x in (equal, *others))
        return any(wilson(x["pass"], self.runs)[0] > FALSE_PASSES for x in others)

    def line(self, plan: str, case: Case) -> str:
        """A case in a line."""
        cells = [self.cell(plan, case, effect) for effect in EACH[plan]]
        return "  ".join(
            f"{x[FIRST[plan]] / self.runs:6.1%} {x[SECOND[plan]] / self.runs:6.1%} "
            f"{x['pairs'] / self.runs:4.1f}"
            for x in cells
        )

    def table(self, chosen: Sequence[Case]) -> str:
        """The table of docs/LIVE_PAIRS.md: the worst law of each kind and multiple; rates that have
        a bar with their 95 % intervals."""
        titles = (
            "pairs × what is assumed", "gain claimed without one", "interval holds the truth",
            "pairs for ×1.15, ×3", "equal found slower", "5 % slower passed",
            "7, 8, 12, 20 % slower found", "pairs (equal, 8 % slower)",
        )  # fmt: skip
        rows = [titles, ("---",) * len(titles)]
        for label, laws in groupby(sorted(chosen, key=_place), lambda case: case.shown):
            rows.append((label, *self._row(list(laws))))
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)

    def _row(self, laws: Sequence[Case]) -> tuple[str, ...]:
        def each(plan: str, effect: float, what: str) -> list[int]:
            return [self.cell(plan, case, effect)[what] for case in laws]

        def pairs(plan: str, *effects: float) -> str:
            most = (max(each(plan, effect, "pairs")) / self.runs for effect in effects)
            return ", ".join(f"{one:.1f}" for one in most)

        found = (min(each("gate", lost, "regression")) for lost in SLOWDOWNS[2:])
        return (
            _rate(max(each("gain", 1.0, "claimed")), self.runs),
            _rate(min(min(each("gain", effect, "covered")) for effect in EFFECTS), self.runs),
            pairs("gain", 1.15, 3.0),
            _rate(max(each("gate", 0.0, "regression")), self.runs),
            _rate(max(each("gate", THRESHOLD, "pass")), self.runs),
            ", ".join(f"{hits / self.runs:.0%}" for hits in found),
            pairs("gate", 0.0, 0.08),
        )


def _rate(hits: int, runs: int) -> str:
    low, high = wilson(hits, runs)
    return f"{hits / runs:.1%} ({100 * low:.1f}–{100 * high:.1f})"


def _place(case: Case) -> tuple[int, float, float]:
    """The order of the table's rows."""
    return list(LAWS).index(case.kind), case.multiple, case.later or 0.0


def simulate(plan: str, case: Case, effect: float, runs: int) -> Cell:
    """One cell."""
    if plan == "gain":
        gains = simulate_gain(case, effect, runs)
        return {"claimed": gains.claimed, "covered": gains.covered, "pairs": gains.pairs}
    verdicts = simulate_gate(case, effect, runs)
    return {**{one.value: verdicts.counts[one] for one in Verdict}, "pairs": verdicts.pairs}


def main() -> int:
    """Print one line a case, and the table; exit 1 if a bar is missed beyond chance."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--plan", choices=tuple(EACH))
    parser.add_argument("--quick", action="store_true", help="only what bars are hardest for")
    parser.add_argument("--beyond", action="store_true", help="launches that differ by 7 to 20 %%")
    parser.add_argument("--recorded", action="store_true", help="pairs as they were recorded")
    parser.add_argument("--work", type=Path, help="folder in which what was simulated is kept")
    options = parser.parse_args()
    if options.recorded:
        return print_recorded(options.runs)
    if options.work is not None:
        options.work.mkdir(parents=True, exist_ok=True)
    known = Simulated(options.runs, options.work and options.work / "simulated_pairs.jsonl")
    chosen, missed = list(cases(options.quick, options.beyond)), 0
    for plan in EACH if options.plan is None else (options.plan,):
        print(f"{plan}: {TITLES[plan]}")
        for case in chosen:
            line, bad = known.line(plan, case), known.missed(plan, case)
            missed += bad
            print(f"{case.label:15} {case.law:9} {line}{'  MISSED' if bad else ''}", flush=True)
    if options.plan is None:
        print(known.table(chosen))
    print(f"verdict={'missed' if missed else 'held'}")
    return 1 if missed else 0


def print_recorded(runs: int) -> int:
    """What recorded pairs give."""
    equal, slower, pairs = recorded(runs)
    for what, counts in (("equal", equal), ("8 % lost", slower)):
        print(f"{what}: {', '.join(f'{v.value} {_rate(n, runs)}' for v, n in counts.items())}")
    print(f"pairs: {pairs:.1f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
