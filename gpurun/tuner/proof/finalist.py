"""One side of the proof: settings, their launches, and what pairs and guard say of them."""

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
from gpurun.records.tuning import GuardVerdict, Proof
from gpurun.same.launch_audit import LaunchAudit
from gpurun.stats.descriptive import says_nothing
from gpurun.tuner.tuning_trial import Trial


@dataclass
class Finalist:
    """One side of the proof: settings that the search found, or the script as it is.

    `pairs`: scores of the script as it is and of these settings. `errors`: the standard error of ln
    of the gain within each pair, None where it was not live. `loose`: of each pair, as `is_loose`;
    empty: none is. `failure` says why it is out. `guard`: None until it is judged. `metric`: that
    of the tuning's objective. `against`: the other side of its pairs.
    """

    name: str
    settings: Mapping[str, Any]
    rates: list[float] = field(default_factory=list)
    results: list[RunResult] = field(default_factory=list)
    shown: list[LaunchAudit] = field(default_factory=list)
    pairs: list[tuple[float, float]] = field(default_factory=list)
    failure: str | None = None
    errors: list[float | None] = field(default_factory=list)
    loose: list[bool] = field(default_factory=list)
    metric: Metric = Metric.THROUGHPUT
    guard: GuardVerdict | None = None
    against: Finalist | None = None

    @property
    def live(self) -> bool:
        """True if all pairs so far were live."""
        return bool(self.errors) and None not in self.errors

    def look(self) -> Look:
        """The state of the test."""
        return look(self._readings())

    def estimate(self) -> Estimate:
        """What its pairs say together: those of the latest look, all of them before the first one.
        There must be one."""
        return estimate(self._used())

    def scatter(self) -> float:
        """How many times as far its pairs are apart as was assumed of them; 1 at least."""
        used = self._used()
        assumed = math.fsum(one.sd**2 + one.error**2 for one in used) / len(used)
        return max(1.0, estimate(used).pair_sd / math.sqrt(assumed))

    def _used(self) -> list[Reading]:
        return self._readings()[: self.look().pairs_used or None]

    def _readings(self) -> list[Reading]:
        logs = [math.log(theirs / ours) for ours, theirs in self.pairs]
        errors, loose = self.errors or [None] * len(logs), self.loose or [False] * len(logs)
        return [reading(self.metric, *pair) for pair in zip(logs, errors, loose, strict=True)]

    @property
    def done(self) -> bool:
        """Nothing more to learn from this finalist: it is out, or the test needs no more pairs."""
        return self.failure is not None or self.look().settled

    @property
    def accepted(self) -> bool:
        """It ran, and it trains the same."""
        return self.failure is None and self.guard is not None and self.guard.accepted

    @property
    def verdict(self) -> str:
        """As in `TuningReport`, if this is what is chosen."""
        if self.accepted and self.look().proven:
            return "faster"
        return "inconclusive" if self.accepted and not self.done else "no_gain"

    @property
    def objection(self) -> str:
        """Reason why it is not chosen, in a clause."""
        if self.failure is not None:
            return self.failure
        if self.guard is not None and not self.guard.accepted:
            return "rejected by the loss guard: " + "; ".join(self.guard.reasons)
        return (
            "the proof does not confirm it" if self.done else "not proven: the budget ended first"
        )

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

    def paired(
        self, baseline: float, gain: float | None, error: float | None, loose: bool = False
    ) -> None:
        """Take in a pair. `baseline`: the score of the script as it is. `gain`: how many times
        better this side's is, None where a side has none; `error`, `loose`: as the fields."""
        if gain is not None:
            self.pairs.append((baseline, gain * baseline))
            self.errors.append(error)
            self.loose.append(loose)


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
