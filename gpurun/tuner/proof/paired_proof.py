"""The proof: pairs of fresh launches of finalist and baseline until a sequential test settles.

The two launches of a pair share a seed. How a pair is launched is the pair engine's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpurun.formatting.number_text import count
from gpurun.pairs.engine import NotLive
from gpurun.pairs.estimate import reading
from gpurun.pairs.gain import LEAST_GAIN, MOST_PAIRS, Look, look
from gpurun.records.bench.metrics import Metric
from gpurun.records.result import RunResult
from gpurun.records.tuning import Proof
from gpurun.stats.descriptive import geometric_mean
from gpurun.stats.intervals import says_nothing
from gpurun.tuner.guard.training_evidence import Evidence
from gpurun.tuner.tuning_trial import Trial


@dataclass(frozen=True)
class PairResult:
    """One pair. `gain`: how many times better the finalist's score is, None where a side has none;
    `error`: the standard error of its logarithm by the turns, None where they do not say it.
    `seconds`: what the pair took.
    """

    baseline: Trial
    finalist: Trial
    gain: float | None
    seconds: float
    error: float | None = None


TakePair = Callable[[Mapping[str, Any], int], PairResult]
"""(settings of the finalist, number of the round) → the pair; or `NotLive` is raised."""


@dataclass
class Finalist:
    """One side of the proof: settings that the search found, or the script as it is.

    `failure` says why it is out. `errors`: the standard error of ln of the gain within each pair,
    None where it was not live. `earlier_pairs`: so many of them, the first ones, an earlier tuning
    measured. `metric`: that of the tuning's objective.
    """

    name: str
    settings: Mapping[str, Any]
    rates: list[float] = field(default_factory=list)
    results: list[RunResult] = field(default_factory=list)
    shown: list[Evidence] = field(default_factory=list)
    pairs: list[tuple[float, float]] = field(default_factory=list)
    failure: str | None = None
    errors: list[float | None] = field(default_factory=list)
    earlier_pairs: int = 0
    metric: Metric = Metric.THROUGHPUT

    @property
    def live(self) -> bool:
        """True if all pairs so far were live."""
        return bool(self.errors) and None not in self.errors

    def look(self) -> Look:
        """The state of the test."""
        logs = [math.log(theirs / ours) for ours, theirs in self.pairs]
        errors = self.errors or [None] * len(logs)
        return look([reading(self.metric, *pair) for pair in zip(logs, errors, strict=True)])

    @property
    def done(self) -> bool:
        """Nothing more to learn from this finalist."""
        return self.failure is not None or self.settled

    @property
    def settled(self) -> bool:
        """The test needs no further pair."""
        return self.look().settled

    @property
    def may_gain(self) -> bool:
        """False if its pairs so far show no gain that is worth a change."""
        gains = [theirs / ours for ours, theirs in self.pairs]
        return not gains or geometric_mean(gains) >= LEAST_GAIN

    def launched(self, trial: Trial) -> bool:
        """Take in one launch; False where it has no score, and the finalist is out."""
        if trial.score is None or trial.result is None:
            self.failure = trial.record.reason or trial.no_score
            return False
        self.rates.append(trial.score)
        self.results.append(trial.result)
        if trial.evidence is not None:
            self.shown.append(trial.evidence)
        return True

    def paired(self, pair: PairResult, baseline: float) -> None:
        """Take in a pair; `baseline`: the score of the script as it is."""
        if pair.gain is not None:
            self.pairs.append((baseline, pair.gain * baseline))
            self.errors.append(pair.error)


def prove(
    baseline: Finalist,
    finalists: list[Finalist],
    take: TakePair,
    out_of_time: Callable[[float], bool],
    report: Callable[[str], None],
) -> None:
    """Run rounds until every finalist is settled or the time is up; `take` measures a pair.

    A pair begins if there is time for what the last one of the finalist took; the first one begins
    before the end. Where the time is short the first finalist has it.
    """
    costs = {finalist.name: 0.0 for finalist in finalists}
    told = False
    for number in range(MOST_PAIRS):
        ahead = [one for one in finalists if not one.done]
        if not ahead or baseline.failure is not None:
            return
        whole = sum(costs[finalist.name] for finalist in ahead)
        if len(ahead) > 1 and out_of_time(whole + costs[ahead[0].name]):
            if not told:
                others = ", ".join(finalist.name for finalist in ahead[1:])
                report(f"time is short: {ahead[0].name} is launched without {others}")
            told, ahead, whole = True, ahead[:1], costs[ahead[0].name]
        if out_of_time(whole):
            report("the budget ended before the proof was complete")
            return
        for finalist in ahead:
            try:
                pair = take(finalist.settings, number)
            except NotLive as obstacle:
                report(f"{finalist.name}: no more pairs, the time is up: {obstacle}")
                return
            costs[finalist.name] = pair.seconds
            if any(t.record.status == "timeout" for t in (pair.baseline, pair.finalist)):
                if out_of_time(0.0):
                    report("the budget ended in the middle of a round")
                    return
            ours, theirs = baseline.launched(pair.baseline), finalist.launched(pair.finalist)
            if ours and theirs:
                finalist.paired(pair, baseline.rates[-1])
                report(_told(finalist))


def _told(finalist: Finalist) -> str:
    """The state of a finalist in a line."""
    seen, found = finalist.look(), count(len(finalist.pairs), "pair")
    gains = ", ".join(f"×{rate / base:.3g}" for base, rate in finalist.pairs)
    if seen.speedup is None or seen.interval is None:
        return f"{finalist.name}: {gains} in {found}"
    if says_nothing(seen.interval):
        return f"{finalist.name}: not settled: {gains} in {found}"
    low, high = seen.interval
    proven = "proven, not precise yet" if seen.proven else "not settled"
    state = "settled" if seen.settled else proven
    used = count(seen.pairs_used, "pair")
    return f"{finalist.name}: ×{seen.speedup:.3g} ({low:.3g}–{high:.3g}) after {used}, {state}"


def proof_of(finalist: Finalist) -> Proof | None:
    """The proof of a finalist; None before the first look."""
    seen = finalist.look()
    if seen.speedup is None or seen.interval is None or seen.p_value is None:
        return None
    return Proof(
        speedup=seen.speedup,
        speedup_confidence_interval=None if says_nothing(seen.interval) else seen.interval,
        p_value=seen.p_value,
        statistically_significant=seen.significant,
        settled=seen.settled,
        pairs=tuple(finalist.pairs),
        live=finalist.live,
        earlier_pairs=finalist.earlier_pairs,
        errors=tuple(e for e in finalist.errors if e is not None),
    )
