"""The rows of the ladder, from the rungs that were measured and what was not kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from gpurun.knobs.api import Effect
from gpurun.knobs.stages import AS_IT_IS, BATCH_STAGE, MEMORY
from gpurun.measure.optional_figures import known, mean
from gpurun.pairs.gain import Look
from gpurun.records.effects import ALLOW_ALL
from gpurun.records.tuning import Candidate, GuardVerdict, LadderRow
from gpurun.tuner.ladder.rungs import AS_IT_IS_RUNG, Rung, Stages, top_rung
from gpurun.tuner.proof.finalist import Finalist
from gpurun.tuner.search.changes import strongest_effect

EffectOf = Callable[[str], Effect]
APPLY_TRAINING = f"changes training: apply with {ALLOW_ALL}"


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
    effect_of: EffectOf,
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
        found.append(_row(stages, told, effect_of, True, **_of_rung(rung, below, base_rate)))
        below = rung
    by_turns: dict[str, Any] = {}
    if found:
        gain, interval = proven.speedup, proven.interval
        by_turns = {"speedup": gain, "speedup_confidence_interval": interval}
    elif names:
        found = [_row(stages, names, effect_of, True)]
    last = {
        **_figures(top),
        **by_turns,
        "loss_deviation": None if guard is None else guard.loss_deviation,
        "output_deviation": guard.output_deviation if guard and guard.forward_only else None,
    }
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
    return abs(rung.log - before.log) > math.hypot(rung.half, before.half)


def _row(
    stages: Stages, names: Sequence[str], effect_of: EffectOf, kept: bool, **figures: Any
) -> LadderRow:
    """The row of the last of these stages, with the changes of all of them."""
    changes = stages.changes(names)
    effect = strongest_effect(map(effect_of, changes)).value
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
    log, half = rung.log - below.log, math.hypot(rung.half, below.half)
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


def rows_not_kept(
    stages: Stages, effect_of: EffectOf, reason: Callable[[str], str]
) -> Iterable[LadderRow]:
    """Settings that the search kept and that are not chosen in the end: a row a stage.

    `reason(knob)`: why.
    """
    for stage in stages.names:
        why = "; ".join(dict.fromkeys(map(reason, stages.changes([stage]))))
        yield _row(stages, [stage], effect_of, False, reason=why)


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
