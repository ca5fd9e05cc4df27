"""Rungs: the chosen settings up to each stage, in turns with the script as it is.

A rung is one launch. It says what stands in a row of the ladder, and it finds a stage that loses;
only the proof is a claim. The rows come from the rungs and from what was not kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

from gpurun.knobs.api import Effect, Knob
from gpurun.knobs.stages import AS_IT_IS, BATCH_STAGE, MEMORY, in_order, stage_of
from gpurun.measure.optional_figures import known, mean
from gpurun.pairs.estimate import assumed_sd, is_loose
from gpurun.pairs.gain import Look
from gpurun.records.bench.metrics import Metric
from gpurun.records.effects import ALLOW_ALL
from gpurun.records.tuning import Candidate, GuardVerdict, LadderRow, TrialPurpose
from gpurun.tuner.proof.finalist import Finalist
from gpurun.tuner.search.changes import strongest_effect
from gpurun.tuner.tuning_trial import Trial

APPLY_TRAINING = f"changes training: apply with {ALLOW_ALL}"
Settings = Mapping[str, Any]
LEVEL = 0.95
"""Of the intervals of a row."""
DEVIATIONS = NormalDist().inv_cdf((1 + LEVEL) / 2)
"""Half such an interval, where the standard deviation is known beforehand."""


@dataclass(frozen=True)
class Rung:
    """`log`: of its speed over the script as it is; `half`: half the width of its interval.

    `trial`: its launch; None of the last rung, which the proof measured. `shared`: the part of
    `half` that is the reference's own launch; rungs beside one reference have it in common.
    """

    stage: str
    log: float
    half: float
    trial: Trial | None = None
    loss_deviation: float | None = None
    shared: float = 0.0


AS_IT_IS_RUNG = Rung("", 0.0, 0.0)
"""Below the first one: the script as it is."""


@dataclass(frozen=True)
class Stages:
    """The chosen settings by stage. `base`: settings that belong to the script as it is."""

    base: Settings
    chosen: Settings
    knob_of: Callable[[str], Knob]

    @property
    def _own(self) -> Settings:
        return {k: v for k, v in self.chosen.items() if k not in self.base or self.base[k] != v}

    @property
    def names(self) -> list[str]:
        """The stages with a change, in the order of the ladder."""
        return in_order(stage_of(self.knob_of(name)) for name in self._own)

    def changes(self, stages: Sequence[str]) -> dict[str, Any]:
        """The changes of these stages."""
        return {k: v for k, v in self._own.items() if stage_of(self.knob_of(k)) in stages}

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
    known: Sequence[Trial] = (),
) -> Iterator[list[Rung]]:
    """The rungs so far, in the order of the ladder: the last one first, then one more each.

    `finalist`: with the pairs of the proof. `room(seconds)`: whether there is time for so much.
    `deviation`: of the loss in a launch. `as_it_is`: a launch alone. `known`: trials that
    took turns already; what has the settings of one is not launched again.
    """
    names, took = stages.names, 0.0
    found = {names[-1]: top_rung(names[-1], finalist)}

    def add(stage: str, trial: Trial) -> list[Rung]:
        if (rung := _rung(stage, trial, finalist, as_it_is)) is not None:
            found[stage] = replace(rung, loss_deviation=deviation(trial))
        return [found[name] for name in names if name in found]

    for trial in known:
        for stage in names[:-1]:
            if trial.record.knobs == stages.up_to(stage):
                add(stage, trial)
    yield [found[name] for name in names if name in found]
    missing = unmeasured(stages, known)
    while missing and room(took):
        stage = _in_the_widest_gap(names, found, missing)
        missing.remove(stage)
        trial = launch(stages.up_to(stage))
        took = trial.record.seconds
        yield add(stage, trial)


def unmeasured(stages: Stages, known: Sequence[Trial]) -> list[str]:
    """The stages below the last one up to which no known trial has all settings."""
    launched = [trial.record.knobs for trial in known]
    return [stage for stage in stages.names[:-1] if stages.up_to(stage) not in launched]


def _in_the_widest_gap(
    names: Sequence[str], found: Mapping[str, Rung], missing: Sequence[str]
) -> str:
    """The middle one of the missing stages between the two rungs that are furthest apart.

    So the largest gain that one row would show is the next one to be told apart.
    """
    gaps: list[tuple[float, str]] = []
    gap: list[str] = []
    below = AS_IT_IS_RUNG
    for name in names:
        if name in missing:
            gap.append(name)
        elif name in found:
            if gap:
                gaps.append((abs(found[name].log - below.log), gap[len(gap) // 2]))
            below, gap = found[name], []
    return max(gaps)[1]


def top_rung(stage: str, finalist: Finalist) -> Rung:
    """The last rung, which the proof measured."""
    known = finalist.estimate()
    return Rung(stage, known.log, known.half_width((1 - LEVEL) / 2))


def _rung(stage: str, trial: Trial, finalist: Finalist, as_it_is: Trial) -> Rung | None:
    """By turns with the reference, else by the scores of launches alone; None if it failed.

    SPEC: its interval comes from what launches are assumed to differ by, and from its own turns. It
    is wider where the pairs of the proof were further apart than assumed. Half of the variance
    between launches is the reference's.
    """
    if not trial.score or not as_it_is.score:
        return None
    gain = trial.gain or trial.score / as_it_is.score
    loose = is_loose(trial.result, as_it_is.result)
    between = assumed_sd(Metric.THROUGHPUT, live=trial.gain is not None, loose=loose)
    scale = DEVIATIONS * finalist.scatter()
    half = scale * math.hypot(between, trial.record.gain_error or 0.0)
    # a trial of the search took turns with another reference
    shared = scale * between / math.sqrt(2) if trial.record.purpose is TrialPurpose.RUNG else 0.0
    return Rung(stage, math.log(gain), half, trial, shared=shared)


def losing(rungs: Sequence[Rung], stages: Sequence[str]) -> list[str]:
    """The stages whose step was measured alone and lies wholly below ×1.

    All steps share an error of 5 %: so many ladders of equal stages lose one by chance.
    """
    known = {rung.stage: rung for rung in rungs}
    below = (AS_IT_IS_RUNG, *map(known.get, stages))
    steps = [(known[stage], b) for stage, b in zip(stages, below, strict=False) if stage in known]
    level = (1 - LEVEL) / max(1, len(steps))
    part = -NormalDist().inv_cdf(level) / DEVIATIONS
    return [
        rung.stage
        for rung, before in steps
        if before is not None and rung.log - before.log + part * _half_of_step(rung, before) < 0
    ]


def _half_of_step(rung: Rung, before: Rung) -> float:
    """Half the width of a step's interval, without the luck that both rungs have in common."""
    common = min(rung.shared, before.shared)
    return math.sqrt(rung.half**2 + before.half**2 - 2 * common**2)


# -- rows ------------------------------------------------------------------------------------------


def first_rows(baseline: Candidate) -> list[LadderRow]:
    """The script as it is; where that does not fit, nothing is known of it, and what makes it fit
    is the row after it."""
    as_it_is = LadderRow(AS_IT_IS, {}, Effect.PIPELINE.value, kept=True)
    measured = replace(as_it_is, speedup=1.0, loss_deviation=0.0, **_figures(baseline))
    if not baseline.knobs:
        return [measured]
    fits = replace(measured, stage=MEMORY, changes=dict(baseline.knobs), reason="makes it fit")
    return [as_it_is, fits]


def kept_rows(
    stages: Stages,
    rungs: Sequence[Rung],
    top: Candidate,
    proven: Look,
    base_rate: float | None,
    guard: GuardVerdict | None = None,
) -> list[LadderRow]:
    """A row a rung; what cannot be told from the row before it is merged with the next.

    All chosen settings are one row where no rung was measured. `top`: these settings with the
    figures of their launches; `proven`, `guard`: what the proof and the guard say of them.
    `base_rate`: samples/s of the script as it is.
    """
    found: list[LadderRow] = []
    below, names = AS_IT_IS_RUNG, stages.names
    for rung in told_apart(rungs):
        end = names.index(rung.stage) + 1
        told, names = names[:end], names[end:]
        found.append(_row(stages, told, True, **_of_rung(rung, below, base_rate)))
        below = rung
    last = _figures(top)
    if found:
        last |= {"speedup": proven.speedup, "speedup_confidence_interval": proven.interval}
    elif names:
        found = [_row(stages, names, True)]
    if guard is not None:
        last["loss_deviation"] = guard.loss_deviation
        last["output_deviation"] = guard.output_deviation if guard.forward_only else None
    return [*found[:-1], *(replace(row, **last) for row in found[-1:])]


def told_apart(rungs: Sequence[Rung]) -> list[Rung]:
    """The rungs that are rows of their own.

    The last one always is. If it cannot be told from the row before it, that one goes.
    """
    rows: list[Rung] = []
    for rung in rungs:
        while rows and rung is rungs[-1] and not _apart(rung, rows[-1]):
            rows.pop()
        if rung is rungs[-1] or _apart(rung, rows[-1] if rows else AS_IT_IS_RUNG):
            rows.append(rung)
    return rows


def _apart(rung: Rung, before: Rung) -> bool:
    return abs(rung.log - before.log) > _half_of_step(rung, before)


def _row(stages: Stages, names: Sequence[str], kept: bool, **figures: Any) -> LadderRow:
    """The row of the last of these stages, with the changes of all of them."""
    changes = stages.changes(names)
    effect = strongest_effect(stages.knob_of(name).effect for name in changes).value
    return LadderRow(names[-1], changes, effect, kept, merged=tuple(names[:-1]), **figures)


def _of_rung(rung: Rung, below: Rung, base_rate: float | None) -> dict[str, Any]:
    record = None if rung.trial is None else rung.trial.record
    result = None if rung.trial is None else rung.trial.result
    return {
        "samples_per_second": None if base_rate is None else base_rate * math.exp(rung.log),
        "speedup": math.exp(rung.log),
        "speedup_confidence_interval": _interval(rung.log, rung.half),
        **_step(rung, below),
        "peak_memory_bytes": None if record is None else record.peak_memory_bytes,
        "joules_per_sample": None if record is None else record.joules_per_sample,
        "gpu_utilization_percent": None if result is None else result.gpu_utilization_percent,
        "loss_deviation": rung.loss_deviation,
    }


def _step(rung: Rung, below: Rung) -> dict[str, Any]:
    """What one rung gains over another."""
    log, half = rung.log - below.log, _half_of_step(rung, below)
    return {"step_speedup": math.exp(log), "step_speedup_confidence_interval": _interval(log, half)}


def _interval(log: float, half: float) -> tuple[float, float] | None:
    return (math.exp(log - half), math.exp(log + half)) if math.isfinite(half) else None


def _figures(side: Candidate) -> dict[str, Any]:
    return {
        "samples_per_second": side.samples_per_second,
        "peak_memory_bytes": side.peak_memory_bytes,
        "gpu_utilization_percent": side.gpu_utilization_percent,
        "joules_per_sample": side.joules_per_sample,
    }


def rows_not_kept(stages: Stages, reason: Callable[[str], str]) -> Iterable[LadderRow]:
    """Settings that the search kept and that are not chosen in the end: a row a stage.

    `reason(knob)`: why.
    """
    for stage in stages.names:
        why = "; ".join(dict.fromkeys(map(reason, stages.changes([stage]))))
        yield _row(stages, [stage], False, reason=why)


def batch_row(
    larger: Finalist | None,
    below: Finalist | None,
    top: Candidate | None,
    base_rate: float | None,
    objection: str,
) -> list[LadderRow]:
    """The larger batch that may not be applied: a row, with its gain if that was proven.

    `below`, `top`: what it is tried on top of; `base_rate`: samples/s of the script as it is.
    `objection`: what speaks against it, "" for its effect alone.
    """
    if larger is None or not larger.pairs or top is None:
        return []
    seen = larger.look()
    figures: dict[str, Any] = {}
    objection = objection or ("" if seen.proven else "not proven: the budget ended first")
    if not objection:
        figures = {
            "samples_per_second": base_rate * seen.speedup if base_rate and seen.speedup else None,
            "speedup": seen.speedup,
            "speedup_confidence_interval": seen.interval,
        }
        if below is not None and below.pairs:
            figures |= _step(top_rung("", larger), top_rung("", below))
    return [
        LadderRow(
            stage=BATCH_STAGE,
            changes={k: v for k, v in larger.settings.items() if top.knobs.get(k) != v},
            effect=Effect.TRAINING.value,
            kept=False,
            peak_memory_bytes=max(known(r.peak_memory_bytes for r in larger.results), default=None),
            gpu_utilization_percent=mean(r.gpu_utilization_percent for r in larger.results),
            reason=objection or APPLY_TRAINING,
            **figures,
        )
    ]
