"""The verdict as the record of a tuning keeps it, with the loss curves of both sides."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import zip_longest

from gpurun.knobs.api import Effect
from gpurun.records.tuning import GuardVerdict, LossCurves, NamedDistance
from gpurun.same.curve_distances import parts
from gpurun.same.distances import Baselines
from gpurun.same.launch_audit import LaunchAudit
from gpurun.same.measured_distance import Measured
from gpurun.same.named_distance import Kind
from gpurun.same.verdict import Sameness

NUMBERS = (Kind.OUTPUTS, Kind.EVALUATIONS)
DECISIONS = (Kind.DECISIONS, Kind.EVALUATED_DECISIONS)
Launches = Sequence[LaunchAudit]


def guard_verdict(
    found: Sameness, baselines: Launches, candidates: Launches, effect: Effect
) -> GuardVerdict:
    """Write a verdict down. `baselines`: those that it was made with."""
    plain = Baselines.of(baselines).plain
    curve = found.worst(Kind.CURVE)
    told = effect is not Effect.TRAINING and not any(b.nonfinite_from for b in plain)
    loss = curve if told else None
    seen = () if found.outputs_unseen else found.table
    numbers = [m.distance.size for m in seen if m.name.kind in NUMBERS and _whole(m)]
    shares = [1 - m.distance.size**2 for m in seen if m.name.kind in DECISIONS]
    forward_only = bool(candidates) and all(c.forward_only for c in candidates)
    shown = {
        "samples": _both(plain, candidates, lambda t: any(s.order for s in t.samples)),
        "gradients": effect is not Effect.TRAINING and _both(plain, candidates, _has_gradients),
        "losses": loss is not None,
        "outputs": bool(numbers or shares),
    }
    return GuardVerdict(
        accepted=found.same,
        loss_deviation=None if loss is None else loss.distance.size,
        noise=None if loss is None else loss.noise,
        reasons=found.reasons,
        curves=None if forward_only else curves(plain, candidates),
        output_deviation=max(numbers, default=None),
        output_agreement=min(shares, default=None),
        outputs_not_compared=found.outputs_unseen,
        compared=tuple(name for name, seen in shown.items() if seen),
        forward_only=forward_only,
        distances=_of_each_kind(found.table),
    )


def _of_each_kind(table: Sequence[Measured]) -> tuple[NamedDistance, ...]:
    """The distance of each kind that sticks out most; infinities are None."""
    worst: dict[Kind, Measured] = {}
    for measured in table:
        worst.setdefault(measured.name.kind, measured)
    return tuple(
        NamedDistance(
            name=str(m.name),
            distance=_figure(m.distance.size),
            floor=None if m.floor is None else _figure(m.floor.value),
            source=None if m.floor is None else m.floor.source,
            bound=_figure(m.bound),
            scaled=_figure(m.scaled),
            compared=m.compared,
        )
        for m in worst.values()
    )


def _figure(value: float) -> float | None:
    return float(f"{value:.4g}") if math.isfinite(value) else None


def _whole(measured: Measured) -> bool:
    """True for the distance of a tensor over all calls."""
    return not measured.name.place.endswith(("worst call", "as a whole", "inputs of calls"))


def _both(plain: Launches, candidates: Launches, shows: Callable[[LaunchAudit], bool]) -> bool:
    return any(map(shows, plain)) and bool(candidates) and all(map(shows, candidates))


def _has_gradients(launch: LaunchAudit) -> bool:
    norms = (norm for audit in launch.audits for norm in audit.gradient_norms.values())
    return any(norm is not None and math.isfinite(norm) for norm in norms)


def curves(plain: Launches, candidates: Launches) -> LossCurves | None:
    """The candidate's worst curve beside the longest plain one of its seed, and their range."""
    if not plain or not candidates:
        return None
    known = Baselines(plain)

    def beside(candidate: LaunchAudit) -> LaunchAudit:
        return known.longest(candidate) or plain[0]

    def off(candidate: LaunchAudit) -> float:
        found = parts(candidate.losses, beside(candidate).losses)
        return max((abs(apart) for apart, _ in found), default=0.0)

    worst = max(candidates, key=off)
    steps = [
        [x for x in at if math.isfinite(x)]
        for at in zip_longest(*(b.losses for b in plain), fillvalue=math.nan)
    ]
    return LossCurves(
        baseline=_plain(beside(worst).losses),
        candidate=_plain(worst.losses),
        lowest=tuple(min(at, default=None) for at in steps),
        highest=tuple(max(at, default=None) for at in steps),
    )


def _plain(losses: Sequence[float]) -> tuple[float | None, ...]:
    return tuple(x if math.isfinite(x) else None for x in losses)
