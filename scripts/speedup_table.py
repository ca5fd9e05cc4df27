"""What `bench_speedup.py` found, as figures with intervals and as rows of one table.

Everything is a ratio of launches that stood side by side in one round, so that a machine that
drifts between rounds drifts on both sides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpurun.formatting.knob_text import knobs_text
from gpurun.formatting.number_text import duration, factor, interval, number
from gpurun.stats.descriptive import geometric_mean
from scripts.bench_overhead import interval as t_interval

AS_WRITTEN, CHOSEN, TRAINING = "as written", "chosen", "chosen, training too"
HAND_TUNED = "hand-tuned"
NOT_MEASURED = "not measured"
SM_ACTIVITY = "gpm_sm_activity"
"""The source of a utilisation that says how much of the GPU works; others, whether any does."""
COLUMNS = (
    "workload",
    "as written, samples/s",
    "chosen",
    "hand-tuned",
    "chosen / hand-tuned",
    "with training changes",
    "proven after",
    "GPU busy, as written → chosen",
    "settings chosen",
)


@dataclass(frozen=True)
class Launch:
    """One launch of a side, as gpurun recorded it. None: not measured.

    `not_applied`: knobs of the settings that the script could not take, with the reason.
    """

    samples_per_second: float | None
    busy_percent: float | None
    busy_source: str | None
    seconds: float
    not_applied: tuple[str, ...] = ()


@dataclass(frozen=True)
class Factor:
    """A ratio of throughputs: the geometric mean over rounds, and its 95 % interval.

    None where fewer than two rounds were measured.
    """

    value: float
    interval: tuple[float, float] | None
    rounds: int


@dataclass
class Comparison:
    """One workload: what the tuning came to and what each side did in each round.

    `launches` has one entry a round for each side; None where the round was not run.
    """

    workload: str
    verdict: str = "not tuned"
    tuning_seconds: float | None = None
    knobs: Mapping[str, Any] = field(default_factory=dict)
    training_knobs: Mapping[str, Any] = field(default_factory=dict)
    launches: dict[str, list[Launch | None]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def rates(self, side: str) -> list[float | None]:
        """Samples per second by round."""
        launches = self.launches.get(side, ())
        return [None if launch is None else launch.samples_per_second for launch in launches]

    def rate(self, side: str) -> float | None:
        """The geometric mean of the rounds that were measured."""
        known = [rate for rate in self.rates(side) if rate]
        return geometric_mean(known) if known else None

    def ratio(self, head: str, base: str) -> Factor | None:
        """How much faster `head` is than `base`."""
        return paired(self.rates(base), self.rates(head))

    def busy(self, side: str) -> float | None:
        """Mean percent of the time in which the GPU computed."""
        launches = [launch for launch in self.launches.get(side, ()) if launch is not None]
        known = [x.busy_percent for x in launches if x.busy_percent is not None]
        return math.fsum(known) / len(known) if known else None

    def best_by_hand(self) -> str:
        """The fastest of the hand-tuned variants: the peer to be measured against."""
        variants = [side for side in self.launches if side.startswith(HAND_TUNED)]
        return max(variants, key=lambda side: self.rate(side) or 0.0, default=HAND_TUNED)

    def document(self) -> dict[str, Any]:
        """Everything, for JSON."""
        hand = self.best_by_hand()
        pairs = ((CHOSEN, AS_WRITTEN), (TRAINING, AS_WRITTEN), (hand, AS_WRITTEN), (CHOSEN, hand))
        return {
            "workload": self.workload,
            "verdict": self.verdict,
            "tuning_seconds": self.tuning_seconds,
            "knobs": dict(self.knobs),
            "training_knobs": dict(self.training_knobs),
            "launches": {
                side: [None if x is None else vars(x) for x in launches]
                for side, launches in self.launches.items()
            },
            "ratios": {
                f"{head} / {base}": None if ratio is None else vars(ratio)
                for head, base in pairs
                for ratio in [self.ratio(head, base)]
            },
            "notes": list(self.notes),
        }


def paired(base: Sequence[float | None], head: Sequence[float | None]) -> Factor | None:
    """The ratio over the rounds in which both were measured; None if there is none."""
    pairs = [(b, h) for b, h in zip(base, head, strict=False) if b and h]
    if not pairs:
        return None
    if len(pairs) == 1:
        return Factor(pairs[0][1] / pairs[0][0], None, 1)
    mean, low, high = map(math.exp, t_interval([math.log(b / a) for a, b in pairs]))
    return Factor(mean, (low, high), len(pairs))


def table(comparisons: Sequence[Comparison]) -> str:
    """A Markdown table, one row a workload."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *(row(x) for x in comparisons)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def row(found: Comparison) -> tuple[str, ...]:
    """The cells of one workload."""
    rate, hand = found.rate(AS_WRITTEN), found.best_by_hand()
    flags = hand.removeprefix(HAND_TUNED).strip()
    by_hand = _factor(found.ratio(hand, AS_WRITTEN)) + (f" (`{flags}`)" if flags else "")
    return (
        found.workload,
        NOT_MEASURED if rate is None else number(rate),
        _factor(found.ratio(CHOSEN, AS_WRITTEN)) if found.knobs else f"none ({found.verdict})",
        by_hand,
        _percent(found.ratio(CHOSEN, hand)),
        _factor(found.ratio(TRAINING, AS_WRITTEN)) if found.training_knobs else "none",
        duration(found.tuning_seconds) if found.knobs and found.tuning_seconds else "–",
        f"{_busy(found, AS_WRITTEN)} → {_busy(found, CHOSEN)}",
        knobs_text(found.knobs) if found.knobs else "",
    )


def _factor(ratio: Factor | None) -> str:
    if ratio is None:
        return NOT_MEASURED
    bounds = interval(ratio.interval)
    return factor(ratio.value) + (f" ({bounds})" if bounds else "")


def _percent(ratio: Factor | None) -> str:
    if ratio is None:
        return NOT_MEASURED
    text = f"{100 * ratio.value:.0f} %"
    if ratio.interval is None:
        return text
    low, high = ratio.interval
    return f"{text} ({100 * low:.0f}–{100 * high:.0f})"


def _busy(found: Comparison, side: str) -> str:
    percent = found.busy(side)
    if percent is None:
        return "–"
    sources = {x.busy_source for x in found.launches[side] if x is not None}
    return f"{percent:.0f} %" + ("" if sources == {SM_ACTIVITY} else " (any kernel)")
