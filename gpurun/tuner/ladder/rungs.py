"""Rungs: the chosen settings up to each stage, in turns with the script as it is.

A rung is one launch. It says what stands in a row of the ladder, and it finds a stage that loses;
only the proof is a claim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpurun.knobs.stages import in_order
from gpurun.pairs.estimate import assumed_sd
from gpurun.records.bench.metrics import Metric
from gpurun.stats.student_t import t_quantile
from gpurun.tuner.proof.finalist import Finalist
from gpurun.tuner.tuning_trial import Trial

Settings = Mapping[str, Any]
LEVEL = 0.95
"""Of the intervals of a row."""


@dataclass(frozen=True)
class Rung:
    """`log`: of its speed over the script as it is; `half`: half the width of its interval.

    `trial`: its launch; None of the last rung, which the proof measured.
    """

    stage: str
    log: float
    half: float
    trial: Trial | None = None
    loss_deviation: float | None = None


AS_IT_IS_RUNG = Rung("", 0.0, 0.0)
"""Below the first one: the script as it is."""


@dataclass(frozen=True)
class Stages:
    """The chosen settings by stage. `base`: settings that belong to the script as it is."""

    base: Settings
    chosen: Settings
    stage_of: Callable[[str], str]

    @property
    def _own(self) -> Settings:
        return {k: v for k, v in self.chosen.items() if k not in self.base or self.base[k] != v}

    @property
    def names(self) -> list[str]:
        """The stages with a change, in the order of the ladder."""
        return in_order(map(self.stage_of, self._own))

    def changes(self, stages: Sequence[str]) -> dict[str, Any]:
        """The changes of these stages."""
        return {k: v for k, v in self._own.items() if self.stage_of(k) in stages}

    def up_to(self, stage: str) -> dict[str, Any]:
        """All settings up to this stage."""
        names = self.names
        return {**self.base, **self.changes(names[: names.index(stage) + 1])}


def measure_rungs(
    stages: Stages,
    finalist: Finalist,
    launch: Callable[[Settings], Trial],
    room: Callable[[float], bool],
    deviation: Callable[[Trial], float | None],
    as_it_is: Trial,
) -> Iterator[list[Rung]]:
    """The rungs so far, in the order of the ladder: the last one first, then one more each.

    `finalist`: with the pairs of the proof. `room(seconds)`: whether there is time for so much.
    `deviation`: of the loss in a launch. `as_it_is`: a launch alone.
    """
    found = {stages.names[-1]: top_rung(stages.names[-1], finalist)}
    yield list(found.values())
    took = 0.0
    for stage in _halving(stages.names[:-1]):
        if not room(took):
            break
        trial = launch(stages.up_to(stage))
        took = trial.record.seconds
        if (gain := _gain(trial, finalist, as_it_is)) is not None:
            found[stage] = Rung(stage, *gain, trial, deviation(trial))
            yield [found[name] for name in stages.names if name in found]


def _halving(stages: Sequence[str]) -> Iterator[str]:
    """The middle first, then those of both halves: where time ends, rows are of like length."""
    queue = [list(stages)]
    while queue:
        part = queue.pop(0)
        if part:
            middle = len(part) // 2
            yield part[middle]
            queue += [part[:middle], part[middle + 1 :]]


def top_rung(stage: str, finalist: Finalist) -> Rung:
    """The last rung, which the proof measured."""
    known = finalist.estimate()
    return Rung(stage, known.log, known.half_width((1 - LEVEL) / 2))


def _gain(trial: Trial, finalist: Finalist, as_it_is: Trial) -> tuple[float, float] | None:
    """By turns with the reference, else by the scores of launches alone; None if it failed.

    Launches differ as far as the pairs of the proof showed, and no less than is assumed of all.
    """
    known = finalist.estimate()
    least = assumed_sd(Metric.THROUGHPUT, live=trial.gain is not None)
    if not trial.score or not as_it_is.score:
        return None
    gain = trial.gain or trial.score / as_it_is.score
    deviation = math.hypot(max(known.pair_sd, least), trial.record.gain_error or 0.0)
    return math.log(gain), t_quantile(known.freedom, (1 + LEVEL) / 2) * deviation


def losing(rungs: Sequence[Rung], stages: Sequence[str]) -> list[str]:
    """The stages whose step was measured alone and lies wholly below ×1."""
    known = {rung.stage: rung for rung in rungs}
    before: Rung | None = AS_IT_IS_RUNG
    found = []
    for stage in stages:
        rung = known.get(stage)
        if rung is not None and before is not None:
            if rung.log - before.log + math.hypot(rung.half, before.half) < 0:
                found.append(stage)
        before = rung
    return found
