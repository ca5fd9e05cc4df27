"""The verdict as the record of a tuning keeps it, with the loss curves of both sides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest

from gpurun.records.tuning import GuardVerdict, LossCurves, NamedDistance
from gpurun.same.curve_distances import parts
from gpurun.same.distances import Baselines
from gpurun.same.launch_audit import LaunchAudit
from gpurun.same.measured_distance import Measured
from gpurun.same.sameness_table import SHARES, Kind
from gpurun.same.verdict import Sameness

ANY_OUTPUTS = SHARES | {Kind.OUTPUTS, Kind.EVALUATIONS}
SHOWN = {
    "samples": {Kind.SAMPLES, Kind.ORDER},
    "gradients": {Kind.GRADIENTS},
    "losses": {Kind.CURVE},
}
"""What a report says was compared, beside outputs, and the kinds that say so."""
PARTIAL = ("worst call", "as a whole", "inputs of calls")
"""Places of outputs that are no tensor over all calls."""
Launches = Sequence[LaunchAudit]


def guard_verdict(found: Sameness, baselines: Launches, candidates: Launches) -> GuardVerdict:
    """Write a verdict down. `baselines`: those that it was made with."""
    plain = Baselines.of(baselines).plain
    told = {kind for kind in Kind if found.worst(kind) is not None}
    if found.outputs_unseen is not None:
        told -= ANY_OUTPUTS
    if any(b.nonfinite_from is not None for b in plain):
        told -= {Kind.CURVE}
    loss = found.worst(Kind.CURVE) if Kind.CURVE in told else None
    outputs = [
        m
        for m in found.table
        if m.name.kind in told & ANY_OUTPUTS and not m.name.place.endswith(PARTIAL)
    ]
    numbers = [m.distance.size for m in outputs if m.name.kind not in SHARES]
    shares = [1 - m.distance.size**2 for m in outputs if m.name.kind in SHARES]
    compared = [name for name, kinds in SHOWN.items() if kinds & told]
    forward_only = bool(candidates) and all(c.forward_only for c in candidates)
    worst = {m.name.kind: m for m in reversed(found.table)}
    return GuardVerdict(
        accepted=found.same,
        loss_deviation=None if loss is None else loss.distance.size,
        noise=None if loss is None else loss.noise,
        reasons=found.reasons,
        curves=None if forward_only else curves(plain, candidates),
        output_deviation=max(numbers, default=None),
        output_agreement=min(shares, default=None),
        outputs_not_compared=found.outputs_unseen,
        compared=tuple([*compared, "outputs"] if outputs else compared),
        forward_only=forward_only,
        distances=tuple(_written(m) for m in found.table if worst[m.name.kind] is m),
    )


def _written(m: Measured) -> NamedDistance:
    """The distance of a kind that sticks out most; infinities are None."""
    return NamedDistance(
        name=str(m.name),
        distance=_figure(m.distance.size),
        floor=None if m.floor is None else _figure(m.floor.value),
        source=None if m.floor is None else m.floor.source,
        bound=_figure(m.bound),
        scaled=_figure(m.scaled),
        compared=m.compared,
    )


def _figure(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def curves(plain: Launches, candidates: Launches) -> LossCurves | None:
    """The candidate's worst curve beside the longest plain one of its seed, and their range."""
    if not plain or not candidates:
        return None
    pairs = [(c.losses, (Baselines(plain).longest(c) or plain[0]).losses) for c in candidates]
    off = [max((abs(apart) for apart, _ in parts(*pair)), default=0.0) for pair in pairs]
    worst, beside = pairs[off.index(max(off))]
    steps = [
        [x for x in at if math.isfinite(x)]
        for at in zip_longest(*(b.losses for b in plain), fillvalue=math.nan)
    ]
    return LossCurves(
        baseline=_plain(beside),
        candidate=_plain(worst),
        lowest=tuple(min(at, default=None) for at in steps),
        highest=tuple(max(at, default=None) for at in steps),
    )


def _plain(losses: Sequence[float]) -> tuple[float | None, ...]:
    return tuple(x if math.isfinite(x) else None for x in losses)
