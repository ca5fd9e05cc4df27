"""The rows of the ladder, from the rungs that were measured and what was not kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpurun.knobs.api import Effect
from gpurun.knobs.stages import AS_IT_IS, BATCH_STAGE, MEMORY
from gpurun.measure.optional_figures import known, mean
from gpurun.pairs.gain import Look
from gpurun.records.tuning import Candidate, GuardVerdict, LadderRow
from gpurun.tuner.ladder.rungs import Rung, Stages, top_rung
from gpurun.tuner.proof.decision import APPLY_TRAINING
from gpurun.tuner.proof.finalist import Finalist
from gpurun.tuner.search.changes import strongest_effect


@dataclass(frozen=True)
class _Row:
    """A rung with the stages that were measured together with it."""

    rung: Rung
    merged: tuple[str, ...]


def first_rows(baseline: Candidate) -> list[LadderRow]:
    """The script as it is; where that does not fit, nothing is known of it, and what makes it fit
    is the row after it."""
    as_it_is = LadderRow(AS_IT_IS, {}, Effect.PIPELINE.value, kept=True)
    measured = replace(
        as_it_is,
        samples_per_second=baseline.samples_per_second,
        speedup=1.0,
        peak_memory_bytes=baseline.peak_memory_bytes,
        gpu_utilization_percent=baseline.gpu_utilization_percent,
        joules_per_sample=baseline.joules_per_sample,
        loss_deviation=0.0,
    )
    if not baseline.knobs:
        return [measured]
    return [
        as_it_is,
        replace(measured, stage=MEMORY, changes=dict(baseline.knobs), reason="makes it fit"),
    ]


def kept_rows(
    stages: Stages,
    rungs: Sequence[Rung],
    top: Candidate,
    proven: Look,
    base_rate: float | None,
    effect_of: Callable[[str], Effect],
    guard: GuardVerdict | None = None,
) -> list[LadderRow]:
    """A row a rung; what cannot be told from the row before it is merged with the next.

    All chosen settings are one row where no rung was measured. `top`: these settings with the
    figures of their launches; `proven`, `guard`: what the proof and the guard say of them.
    `base_rate`: samples/s of the script as it is.
    """
    if not rungs and stages.names:
        changes = stages.changes(stages.names)
        effect = strongest_effect(map(effect_of, changes)).value
        last, before = stages.names[-1], tuple(stages.names[:-1])
        whole = LadderRow(last, changes, effect, kept=True, merged=before)
        return [_as_proven(whole, top, proven, guard)]
    found: list[LadderRow] = []
    before_it = Rung(AS_IT_IS, 0.0, 0.0)
    for row in merged(rungs, stages.names):
        found.append(_row(row, before_it, stages, base_rate, effect_of))
        before_it = row.rung
    return [*found[:-1], *(_as_proven(last_row, top, proven, guard) for last_row in found[-1:])]


def _as_proven(
    row: LadderRow, top: Candidate, proven: Look, guard: GuardVerdict | None
) -> LadderRow:
    """The last row, with the figures of the proof's launches."""
    by_turns: dict[str, Any] = (
        {}
        if row.speedup is None
        else {"speedup": proven.speedup, "speedup_confidence_interval": proven.interval}
    )
    return replace(
        row,
        samples_per_second=top.samples_per_second,
        peak_memory_bytes=top.peak_memory_bytes,
        gpu_utilization_percent=top.gpu_utilization_percent,
        joules_per_sample=top.joules_per_sample,
        loss_deviation=None if guard is None else guard.loss_deviation,
        output_deviation=guard.output_deviation if guard and guard.forward_only else None,
        **by_turns,
    )


def merged(rungs: Sequence[Rung], stages: Sequence[str]) -> list[_Row]:
    """The rungs that are rows of their own, each with the stages before it that are not.

    The last rung always is one. If it cannot be told from the row before it, that one goes.
    """
    rows: list[Rung] = []
    for rung in rungs:
        while rows and rung is rungs[-1] and not _apart(rung, rows[-1]):
            rows.pop()
        if rung is rungs[-1] or _apart(rung, rows[-1] if rows else Rung(AS_IT_IS, 0.0, 0.0)):
            rows.append(rung)
    found, begin = [], 0
    for rung in rows:
        end = stages.index(rung.stage)
        found.append(_Row(rung, tuple(stages[begin:end])))
        begin = end + 1
    return found


def _apart(rung: Rung, before: Rung) -> bool:
    return abs(rung.log - before.log) > math.hypot(rung.half, before.half)


def _row(
    row: _Row,
    before: Rung,
    stages: Stages,
    base_rate: float | None,
    effect_of: Callable[[str], Effect],
) -> LadderRow:
    rung, record = row.rung, row.rung.record
    changes = stages.changes((*row.merged, rung.stage))
    step, half = rung.log - before.log, math.hypot(rung.half, before.half)
    return LadderRow(
        stage=rung.stage,
        changes=changes,
        effect=strongest_effect(map(effect_of, changes)).value,
        kept=True,
        samples_per_second=None if base_rate is None else base_rate * math.exp(rung.log),
        speedup=math.exp(rung.log),
        speedup_confidence_interval=_interval(rung.log, rung.half),
        step_speedup=math.exp(step),
        step_speedup_confidence_interval=_interval(step, half),
        peak_memory_bytes=None if record is None else record.peak_memory_bytes,
        joules_per_sample=None if record is None else record.joules_per_sample,
        gpu_utilization_percent=rung.gpu_utilization_percent,
        loss_deviation=rung.loss_deviation,
        merged=row.merged,
    )


def _interval(log: float, half: float) -> tuple[float, float] | None:
    return (math.exp(log - half), math.exp(log + half)) if math.isfinite(half) else None


def rows_not_kept(
    stages: Stages, effect_of: Callable[[str], Effect], reason: Callable[[str], str]
) -> list[LadderRow]:
    """Settings that the search kept and that are not chosen in the end: a row a stage.

    `reason(knob)`: why.
    """
    found = []
    for stage in stages.names:
        changes = stages.changes([stage])
        why = "; ".join(dict.fromkeys(reason(knob) for knob in changes))
        effect = strongest_effect(map(effect_of, changes)).value
        found.append(LadderRow(stage, changes, effect, kept=False, reason=why))
    return found


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
    objection = objection or ("" if seen.proven else "not proven: the budget ended first")
    gain, step = (None, None) if objection else (seen.speedup, _step_over(larger, below))
    return [
        LadderRow(
            stage=BATCH_STAGE,
            changes={k: v for k, v in larger.settings.items() if top.knobs.get(k) != v},
            effect=Effect.TRAINING.value,
            kept=False,
            samples_per_second=base_rate * gain if base_rate and gain else None,
            speedup=gain,
            speedup_confidence_interval=seen.interval if gain else None,
            step_speedup=None if step is None else math.exp(step.log),
            step_speedup_confidence_interval=None
            if step is None
            else _interval(step.log, step.half),
            peak_memory_bytes=max(known(r.peak_memory_bytes for r in larger.results), default=None),
            gpu_utilization_percent=mean(r.gpu_utilization_percent for r in larger.results),
            reason=objection or APPLY_TRAINING,
        )
    ]


def _step_over(larger: Finalist, below: Finalist | None) -> Rung | None:
    """The gain of one finalist over another one, each by its pairs with the script as it is."""
    if below is None or not below.pairs:
        return None
    one, other = top_rung("", larger), top_rung("", below)
    return Rung("", one.log - other.log, math.hypot(one.half, other.half))
