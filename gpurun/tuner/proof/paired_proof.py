"""The proof: pairs of fresh launches of finalist and baseline until a sequential test settles.

A pair is live where it can be: both sides run beside each other and take turns of some steps.
Otherwise they are launched in turn; rounds then alternate their order (B A, A B, ...), so that a
drift of the machine hits both sides alike. The two launches of a pair share a seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpurun.formatting.number_text import count
from gpurun.records.result import RunResult
from gpurun.records.tuning import PAIR_SIDES, Proof, TrialPurpose
from gpurun.stats.descriptive import geometric_mean, mean, standard_deviation
from gpurun.stats.intervals import says_nothing
from gpurun.stats.sequential_test import DEFAULT, LIVE, Look, sequential_look
from gpurun.tuner.guard.training_evidence import Evidence
from gpurun.tuner.proof.time_for_proof import PROOF_ROUNDS, TRUST
from gpurun.tuner.search.screening import LEAST_GAIN
from gpurun.tuner.tuning_trial import Trial

RETRIES = 1
"""A baseline launch or a live pair that fails by itself is repeated this often."""

ENOUGH_WITHOUT = 3
"""So many live pairs whose mean gain is not worth a change end the proof: the test alone would go
on to its last look, with time that a larger batch could have."""
MOST_LEFT = 1.1
"""Unless they scatter so much that there may be a larger gain than this."""

LaunchSide = Callable[[TrialPurpose, Mapping[str, Any], int, Sequence[Mapping[str, Any]]], Trial]
"""(purpose, settings, seed offset, settings of the launches after it) → the finished trial."""


@dataclass(frozen=True)
class PairResult:
    """One live pair. `gain`: how many times better the finalist's score is, by the turns; `error`:
    the standard error of its logarithm within this pair.

    `failure`: why there is no gain, "" where there is one. `seconds`: what the pair took;
    `spare_seconds` less would do where the time is short.
    """

    baseline: Trial | None
    finalist: Trial | None
    gain: float | None
    seconds: float
    failure: str = ""
    error: float = 0.0
    spare_seconds: float = 0.0


LivePair = Callable[[Mapping[str, Any], int], PairResult]
"""(settings of the finalist, number of the round) → the pair."""


@dataclass
class Finalist:
    """One side of the proof: settings that the search found, or the script as it is.

    `failure` says why it is out.
    """

    name: str
    settings: Mapping[str, Any]
    rates: list[float] = field(default_factory=list)
    results: list[RunResult] = field(default_factory=list)
    shown: list[Evidence] = field(default_factory=list)
    pairs: list[tuple[float, float]] = field(default_factory=list)
    failure: str | None = None
    errors: list[float] = field(default_factory=list)
    """The standard error of ln of the gain within each pair that was live."""
    earlier_pairs: int = 0
    """The number of them, the first ones, that an earlier tuning measured."""

    @property
    def live(self) -> bool:
        """True if all pairs so far were live."""
        return len(self.errors) == len(self.pairs) > 0

    def look(self) -> Look:
        """The state of the test; prior and errors of live pairs hold for them alone."""
        if self.live:
            return sequential_look(self.pairs, LIVE, self.errors)
        return sequential_look(self.pairs, DEFAULT)

    @property
    def done(self) -> bool:
        """Nothing more to learn from this finalist."""
        return self.failure is not None or self.settled

    @property
    def settled(self) -> bool:
        """The test is over, or live pairs show no gain that is worth a change."""
        settled = self.look().settled
        if settled or not self.live or len(self.pairs) < ENOUGH_WITHOUT or self.may_gain:
            return settled
        logs = [math.log(theirs / ours) for ours, theirs in self.pairs]
        error = standard_deviation(logs) / math.sqrt(len(logs))
        return mean(logs) + 2 * error < math.log(MOST_LEFT)

    @property
    def may_gain(self) -> bool:
        """False if its pairs so far show no gain that is worth a change."""
        gains = [theirs / ours for ours, theirs in self.pairs]
        return not gains or geometric_mean(gains) >= LEAST_GAIN


def prove(
    baseline: Finalist,
    finalists: list[Finalist],
    launch: LaunchSide,
    out_of_time: Callable[[float], bool],
    report: Callable[[str], None],
    seconds: float,
    live: LivePair | None = None,
) -> None:
    """Run rounds until every finalist is settled or the time is up.

    `live` measures a pair; without it, and once it has failed, launches take turns. After pairs
    that were live it is tried once more, since launches in turn need many pairs; a gain that they
    have proven stays.

    Where the time is short the first finalist has it. `seconds`: what a launch is expected to take,
    as long as no round has told.
    """
    costs = dict.fromkeys((finalist.name for finalist in (baseline, *finalists)), seconds)
    spares = dict.fromkeys(costs, 0.0)
    told = told_by_rounds = False
    live_failures = 0
    for number in range(DEFAULT.looks[-1]):
        open_finalists = [finalist for finalist in finalists if not finalist.done]
        if not open_finalists:
            break
        if len(open_finalists) > 1 and out_of_time(_with_all(baseline, open_finalists, costs)):
            others = ", ".join(finalist.name for finalist in open_finalists[1:])
            open_finalists = open_finalists[:1]
            if not told:
                report(f"time is short: {open_finalists[0].name} is launched without {others}")
            told = True
        needed = _round_of(baseline, open_finalists, costs)
        if live is not None:  # the last pair before the end of the budget may be a short one
            needed -= spares[open_finalists[-1].name]
        if out_of_time(needed if told_by_rounds else TRUST * needed):
            report("the budget ended before the proof was complete")
            break
        told_by_rounds = True
        if live is not None:
            failure = _live_round(baseline, open_finalists, live, number, costs, spares, report)
            if failure and all(side.live and side.look().significant for side in open_finalists):
                report(f"no more pairs, the gain is proven: {failure}")
                break
            if failure and not (open_finalists[0].live and live_failures < RETRIES):
                report(f"launches one after the other from here on: {failure}")
                live = None
            live_failures += bool(failure)
            continue
        rates = _round_in_turn(baseline, open_finalists, launch, number, costs, out_of_time)
        if rates is None:
            report("the budget ended in the middle of a round")
            break
        if baseline.failure is not None:
            break
        _pair(baseline, open_finalists, rates, report)


def _round_in_turn(
    baseline: Finalist,
    finalists: Sequence[Finalist],
    launch: LaunchSide,
    number: int,
    costs: dict[str, float],
    out_of_time: Callable[[float], bool],
) -> dict[str, float] | None:
    """Launch each side once; scores by side. None where the budget ended meanwhile."""
    # a process may be waiting with what was searched last
    order = [*finalists[::-1], baseline]
    if number % 2:
        order.reverse()
    rates: dict[str, float] = {}
    # the next round has the reverse order
    coming = [side.settings for side in (*order, *order[::-1], *order)]
    for place, side in enumerate(order, 1):
        trial = _launch(side, baseline, launch, number, coming[place:])
        costs[side.name] = trial.record.seconds
        if trial.record.status == "timeout" and out_of_time(0.0):
            return None
        _take(side, trial, rates)
    return rates


def _live_round(
    baseline: Finalist,
    finalists: Sequence[Finalist],
    live: LivePair,
    number: int,
    costs: dict[str, float],
    spares: dict[str, float],
    report: Callable[[str], None],
) -> str:
    """A live pair of each finalist; why one could not be measured, "" if all were."""
    for finalist in finalists:
        pair = live(finalist.settings, number)
        if pair.gain is None or pair.baseline is None or pair.finalist is None:
            return pair.failure
        costs[baseline.name], costs[finalist.name] = 0.0, pair.seconds
        spares[finalist.name] = pair.spare_seconds
        rates: dict[str, float] = {}
        _take(baseline, pair.baseline, rates)
        _take(finalist, pair.finalist, rates)
        if baseline.name in rates and finalist.name in rates:
            rates[finalist.name] = pair.gain * rates[baseline.name]
            finalist.errors.append(pair.error)
        _pair(baseline, [finalist], rates, report)
    return ""


def _round_of(
    baseline: Finalist, finalists: Sequence[Finalist], costs: Mapping[str, float]
) -> float:
    """Seconds that a round of these finalists is expected to take."""
    return sum(costs[finalist.name] for finalist in (baseline, *finalists))


def _with_all(
    baseline: Finalist, finalists: Sequence[Finalist], costs: Mapping[str, float]
) -> float:
    """Seconds of one round of all finalists, and of the rounds that the first may need after it.

    Those go up to its next look; before any round was measured, up to its first look.
    """
    first = finalists[0]
    done = len(first.pairs)
    wanted = PROOF_ROUNDS if done else DEFAULT.looks[0]
    look = next((n for n in DEFAULT.looks if n > done and n >= wanted), done + 1)
    later = look - done - 1
    return _round_of(baseline, finalists, costs) + later * _round_of(baseline, [first], costs)


def _launch(
    finalist: Finalist,
    baseline: Finalist,
    launch: LaunchSide,
    number: int,
    following: Sequence[Mapping[str, Any]],
) -> Trial:
    purpose = PAIR_SIDES[0 if finalist is baseline else 1]
    trial = launch(purpose, finalist.settings, number, following)
    tries = RETRIES if finalist is baseline else 0
    while trial.score is None and tries:
        tries -= 1
        trial = launch(purpose, finalist.settings, number, following)
    return trial


def _take(finalist: Finalist, trial: Trial, rates: dict[str, float]) -> None:
    if trial.score is None or trial.result is None:
        finalist.failure = trial.record.reason or trial.no_score
        return
    rates[finalist.name] = trial.score
    finalist.rates.append(trial.score)
    finalist.results.append(trial.result)
    if trial.evidence is not None:
        finalist.shown.append(trial.evidence)


def _pair(
    baseline: Finalist,
    finalists: list[Finalist],
    rates: dict[str, float],
    report: Callable[[str], None],
) -> None:
    for finalist in finalists:
        if finalist.name not in rates or baseline.name not in rates:
            continue
        finalist.pairs.append((rates[baseline.name], rates[finalist.name]))
        look = finalist.look()
        if look.speedup is None or look.interval is None:
            base, rate = finalist.pairs[-1]
            report(f"{finalist.name}: ×{rate / base:.3g} in {count(len(finalist.pairs), 'pair')}")
            continue
        low, high = look.interval
        if says_nothing(look.interval):
            seen = ", ".join(f"×{rate / base:.3g}" for base, rate in finalist.pairs)
            report(f"{finalist.name}: not settled: {seen} in {count(len(finalist.pairs), 'pair')}")
            continue
        proven = "proven, not precise yet" if look.significant else "not settled"
        state = "settled" if look.settled else proven
        report(
            f"{finalist.name}: ×{look.speedup:.3g} ({low:.3g}–{high:.3g}) "
            f"after {count(look.pairs_used, 'pair')}, {state}"
        )


def proof_of(finalist: Finalist) -> Proof | None:
    """The proof of a finalist; None before the first look."""
    look = finalist.look()
    if look.speedup is None or look.interval is None or look.p_value is None:
        return None
    return Proof(
        speedup=look.speedup,
        speedup_confidence_interval=None if says_nothing(look.interval) else look.interval,
        p_value=look.p_value,
        statistically_significant=look.significant,
        settled=look.settled,
        pairs=tuple(finalist.pairs),
        live=finalist.live,
        earlier_pairs=finalist.earlier_pairs,
        errors=tuple(finalist.errors) if finalist.live else (),
    )
