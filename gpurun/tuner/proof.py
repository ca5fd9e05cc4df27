"""The proof: pairs of fresh launches of finalist and baseline until a sequential test settles.

A pair is live where it can be: both sides run beside each other and take turns of some steps.
Otherwise they are launched in turn; rounds then alternate their order (B A, A B, ...), so that a
drift of the machine hits both sides alike. The two launches of a pair share a seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpurun.records.result import RunResult
from gpurun.records.tuning import Proof
from gpurun.stats.intervals import says_nothing
from gpurun.stats.sequential_test import DEFAULT, LIVE, Look, sequential_look
from gpurun.trials.live_pair_launch import TURN_SECONDS
from gpurun.tuner.guard.evidence import Evidence
from gpurun.tuner.plan import PROOF_ROUNDS
from gpurun.tuner.trial import Trial

RETRIES = 1
"""A baseline launch that fails by itself is repeated this often; its pair is not lost."""

TRUST = 0.5
"""The first round begins if there is time for this part of what it is expected to take: that is a
guess from other launches, and a tuning without any round has proven nothing."""
SPARE_SECONDS = TURN_SECONDS / 2
"""So much shorter can the turns of a pair be where the time is short."""

LaunchArm = Callable[[str, Mapping[str, Any], int, Sequence[Mapping[str, Any]]], Trial]
"""(purpose, settings, seed offset, settings of the launches after it) → the finished trial."""


@dataclass(frozen=True)
class PairOutcome:
    """One live pair. `gain`: how many times better the finalist's score is, by the turns.

    `failure`: why there is no gain, "" where there is one. `seconds`: what the pair took.
    """

    baseline: Trial | None
    finalist: Trial | None
    gain: float | None
    seconds: float
    failure: str = ""


LivePair = Callable[[Mapping[str, Any], int], PairOutcome]
"""(settings of the finalist, number of the round) → the pair."""


@dataclass
class Arm:
    """One side of the comparison. `failure` says why a finalist is out."""

    name: str
    settings: Mapping[str, Any]
    rates: list[float] = field(default_factory=list)
    results: list[RunResult] = field(default_factory=list)
    shown: list[Evidence] = field(default_factory=list)
    pairs: list[tuple[float, float]] = field(default_factory=list)
    failure: str | None = None
    live_pairs: int = 0
    """How many of the pairs were live."""
    earlier_pairs: int = 0
    """How many of them, the first ones, an earlier tuning measured."""

    @property
    def live(self) -> bool:
        """Whether all pairs so far were live."""
        return self.live_pairs == len(self.pairs) > 0

    def look(self) -> Look:
        """What the test says by now; the prior for live pairs holds for them alone."""
        return sequential_look(self.pairs, LIVE if self.live else DEFAULT)

    @property
    def done(self) -> bool:
        """Nothing more to learn from this finalist."""
        return self.failure is not None or self.look().settled


def prove(
    baseline: Arm,
    finalists: list[Arm],
    launch: LaunchArm,
    out_of_time: Callable[[float], bool],
    report: Callable[[str], None],
    seconds: float,
    live: LivePair | None = None,
) -> None:
    """Run rounds until every finalist is settled or the time is up.

    `live` measures a pair; without it, and once it has failed, launches take turns.

    Where the time is short the first finalist has it. `seconds`: what a launch is expected to take,
    as long as no round has told.
    """
    costs = dict.fromkeys((arm.name for arm in (baseline, *finalists)), seconds)
    told = told_by_rounds = False
    for number in range(DEFAULT.looks[-1]):
        open_arms = [arm for arm in finalists if not arm.done]
        if not open_arms:
            break
        if len(open_arms) > 1 and out_of_time(_with_all(baseline, open_arms, costs)):
            others = ", ".join(arm.name for arm in open_arms[1:])
            open_arms = open_arms[:1]
            if not told:
                report(f"time is short: {open_arms[0].name} is launched without {others}")
            told = True
        needed = _round_of(baseline, open_arms, costs)
        if out_of_time(needed if told_by_rounds else TRUST * needed):
            report("the budget ended before the proof was complete")
            break
        told_by_rounds = True
        if live is not None:
            failure = _live_round(baseline, open_arms, live, number, costs, report)
            if failure:
                report(f"launches in turn from here on: {failure}")
                live = None
            continue
        order = [*open_arms[::-1], baseline]  # a process may be waiting with what was searched last
        if number % 2:
            order.reverse()
        rates: dict[str, float] = {}
        # the next round has the reverse order
        coming = [arm.settings for arm in (*order, *order[::-1], *order)]
        for place, arm in enumerate(order, 1):
            trial = _launch(arm, baseline, launch, number, coming[place:])
            costs[arm.name] = trial.record.seconds
            if trial.record.status == "timeout" and out_of_time(0.0):
                report("the budget ended in the middle of a round")
                return
            _take(arm, trial, rates)
        if baseline.failure is not None:
            break
        _pair(baseline, open_arms, rates, report)


def _live_round(
    baseline: Arm,
    arms: Sequence[Arm],
    live: LivePair,
    number: int,
    costs: dict[str, float],
    report: Callable[[str], None],
) -> str:
    """A live pair of each finalist; why one could not be measured, "" if all were."""
    for arm in arms:
        pair = live(arm.settings, number)
        if pair.gain is None or pair.baseline is None or pair.finalist is None:
            return pair.failure
        costs[baseline.name], costs[arm.name] = 0.0, max(0.0, pair.seconds - SPARE_SECONDS)
        rates: dict[str, float] = {}
        _take(baseline, pair.baseline, rates)
        _take(arm, pair.finalist, rates)
        if baseline.name in rates and arm.name in rates:
            rates[arm.name] = pair.gain * rates[baseline.name]
            arm.live_pairs += 1
        _pair(baseline, [arm], rates, report)
    return ""


def _round_of(baseline: Arm, arms: Sequence[Arm], costs: Mapping[str, float]) -> float:
    """Seconds that a round of these finalists is expected to take."""
    return sum(costs[arm.name] for arm in (baseline, *arms))


def _with_all(baseline: Arm, arms: Sequence[Arm], costs: Mapping[str, float]) -> float:
    """Seconds of a round of all of these and of what the first of them may need after it.

    That is up to its next look; before any round has told what one takes, up to its first.
    """
    first = arms[0]
    done = len(first.pairs)
    wanted = PROOF_ROUNDS if done else DEFAULT.looks[0]
    look = next((n for n in DEFAULT.looks if n > done and n >= wanted), done + 1)
    later = look - done - 1
    return _round_of(baseline, arms, costs) + later * _round_of(baseline, [first], costs)


def _launch(
    arm: Arm,
    baseline: Arm,
    launch: LaunchArm,
    number: int,
    following: Sequence[Mapping[str, Any]],
) -> Trial:
    purpose = "pair baseline" if arm is baseline else "pair candidate"
    trial = launch(purpose, arm.settings, number, following)
    tries = RETRIES if arm is baseline else 0
    while trial.score is None and tries:
        tries -= 1
        trial = launch(purpose, arm.settings, number, following)
    return trial


def _take(arm: Arm, trial: Trial, rates: dict[str, float]) -> None:
    if trial.score is None or trial.result is None:
        arm.failure = trial.record.reason or trial.record.status
        return
    rates[arm.name] = trial.score
    arm.rates.append(trial.score)
    arm.results.append(trial.result)
    if trial.evidence is not None:
        arm.shown.append(trial.evidence)


def _pair(
    baseline: Arm, arms: list[Arm], rates: dict[str, float], report: Callable[[str], None]
) -> None:
    for arm in arms:
        if arm.name not in rates or baseline.name not in rates:
            continue
        arm.pairs.append((rates[baseline.name], rates[arm.name]))
        look = arm.look()
        if look.speedup is None or look.interval is None:
            base, rate = arm.pairs[-1]
            report(f"{arm.name}: ×{rate / base:.3g} in {len(arm.pairs)} pair")
            continue
        low, high = look.interval
        if says_nothing(look.interval):
            seen = ", ".join(f"×{rate / base:.3g}" for base, rate in arm.pairs)
            report(f"{arm.name}: not settled: {seen} in {len(arm.pairs)} pairs")
            continue
        state = "settled" if look.settled else "not settled"
        report(
            f"{arm.name}: ×{look.speedup:.3g} ({low:.3g}–{high:.3g}) "
            f"after {look.pairs_used} pairs, {state}"
        )


def proof_of(arm: Arm) -> Proof | None:
    """The proof of a finalist; None before the first look."""
    look = arm.look()
    if look.speedup is None or look.interval is None or look.p_value is None:
        return None
    return Proof(
        speedup=look.speedup,
        speedup_confidence_interval=None if says_nothing(look.interval) else look.interval,
        p_value=look.p_value,
        statistically_significant=look.significant,
        settled=look.settled,
        pairs=tuple(arm.pairs),
        live=arm.live,
        earlier_pairs=arm.earlier_pairs,
    )
