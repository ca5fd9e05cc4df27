"""Two launches' audits -> all named distances between them. Pure functions."""

from __future__ import annotations

import math
from dataclasses import dataclass

from gpurun.same.curve_distances import curve_distances, finite_distances, runaway_distances
from gpurun.same.launch_audit import LaunchAudit
from gpurun.same.named_distance import Distances, Kind
from gpurun.same.output_distances import output_distances
from gpurun.same.sample_distances import drawn_later, sample_distances
from gpurun.same.setting_distances import setting_distances
from gpurun.same.step_distances import model_drawn_apart, step_distances

OF_STEPS = frozenset(
    {
        Kind.FIRST_LOSS,
        Kind.INPUTS,
        Kind.DIRECTIONS,
        Kind.GRADIENTS,
        Kind.UPDATES,
        Kind.SIDE_UPDATES,
    }
)
"""Kinds that only say that nothing is lost where the model drew other random numbers; launches
whose model draws none are compared by them alone."""
AFTER_STEPS = frozenset({Kind.EVALUATIONS, Kind.EVALUATED_DECISIONS})
"""Kinds that say nothing where weights have parted, for other random numbers were drawn."""


@dataclass(frozen=True)
class Pair:
    """Two launches: their distances, and the random numbers that they drew otherwise.

    `masks`: those of the model (dropout) in the audited steps. `later`: any, in them or after them.
    """

    distances: Distances
    masks: bool = False
    later: bool = False


def compare(
    ours: LaunchAudit, theirs: LaunchAudit, *, rounds: bool, steps: int | None = None
) -> Pair:
    """All distances of `ours` from `theirs`.

    `rounds`: one of them may round otherwise, and kernels of another precision draw other masks of
    dropout. `steps`: compare only so many steps of the loss curve; None: all that both have.
    """
    masks = ours.seed != theirs.seed or (rounds and model_drawn_apart(ours, theirs))
    later = masks or drawn_later(ours, theirs)
    found = {
        **finite_distances(ours, theirs),
        **setting_distances(ours, theirs),
        **sample_distances(ours, theirs),
        **step_distances(ours, theirs, rounds=rounds),
        **output_distances(ours, theirs),
        **curve_distances(ours, theirs, steps),
        **runaway_distances(ours, theirs),
    }

    def told(kind: Kind, value: float) -> bool:
        if kind in OF_STEPS:
            return not masks or math.isinf(value)
        return not ours.still and not (later and kind in AFTER_STEPS)

    return Pair({n: d for n, d in found.items() if told(n.kind, d.value)}, masks, later)
