"""One side of the proof: settings, their launches, and what their pairs say."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpurun.formatting.number_text import count
from gpurun.pairs.estimate import Estimate, Reading, estimate, reading
from gpurun.pairs.gain import Look, look
from gpurun.records.bench.metrics import Metric
from gpurun.records.result import RunResult
from gpurun.records.tuning import Proof
from gpurun.same.launch_audit import LaunchAudit
from gpurun.stats.intervals import says_nothing
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


@dataclass
class Finalist:
    """One side of the proof: settings that the search found, or the script as it is.

    `failure` says why it is out. `errors`: the standard error of ln of the gain within each pair,
    None where it was not live. `metric`: that of the tuning's objective.
    """

    name: str
    settings: Mapping[str, Any]
    rates: list[float] = field(default_factory=list)
    results: list[RunResult] = field(default_factory=list)
    shown: list[LaunchAudit] = field(default_factory=list)
    pairs: list[tuple[float, float]] = field(default_factory=list)
    failure: str | None = None
    errors: list[float | None] = field(default_factory=list)
    metric: Metric = Metric.THROUGHPUT

    @property
    def live(self) -> bool:
        """True if all pairs so far were live."""
        return bool(self.errors) and None not in self.errors

    def look(self) -> Look:
        """The state of the test."""
        return look(self._readings())

    def estimate(self) -> Estimate:
        """What all its pairs say together; there must be one."""
        return estimate(self._readings())

    def _readings(self) -> list[Reading]:
        logs = [math.log(theirs / ours) for ours, theirs in self.pairs]
        errors = self.errors or [None] * len(logs)
        return [reading(self.metric, *pair) for pair in zip(logs, errors, strict=True)]

    @property
    def done(self) -> bool:
        """Nothing more to learn from this finalist."""
        return self.failure is not None or self.settled

    @property
    def settled(self) -> bool:
        """The test needs no further pair."""
        return self.look().settled

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


def told(finalist: Finalist) -> str:
    """The state of a finalist's proof in a line."""
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
        errors=tuple(e for e in finalist.errors if e is not None),
    )
