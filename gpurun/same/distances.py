"""Two launches' audits -> all named distances between them. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass

from gpurun.same.curve_distances import curve_distances, finite_distances, runaway_distances
from gpurun.same.launch_audit import LaunchAudit
from gpurun.same.named_distance import Distances, Kind
from gpurun.same.output_distances import output_distances
from gpurun.same.sample_distances import drawn_later, sample_distances
from gpurun.same.setting_distances import setting_distances
from gpurun.same.step_distances import model_drawn_apart, step_distances

OF_MASKS = frozenset({Kind.FIRST_LOSS, Kind.INPUTS})
"""Kinds that say nothing where the model drew other random numbers."""
AFTER_STEPS = frozenset({Kind.EVALUATIONS, Kind.EVALUATED_DECISIONS})
"""Kinds that say nothing where weights have parted, for other random numbers were drawn."""


@dataclass(frozen=True)
class OtherDraws:
    """The random numbers that two launches drew otherwise.

    `masks`: those of the model (dropout) in the audited steps. `later`: any, in them or after them.
    Gradients and curves then have the floor of launches under other seeds.
    """

    masks: bool = False
    later: bool = False


@dataclass(frozen=True)
class Pair:
    """Two launches: their distances, and what they drew otherwise."""

    distances: Distances
    draws: OtherDraws


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
        **step_distances(ours, theirs, drawn=masks, rounds=rounds),
        **output_distances(ours, theirs),
        **curve_distances(ours, theirs, steps),
        **runaway_distances(ours, theirs),
    }
    silent = (*(OF_MASKS if masks else ()), *(AFTER_STEPS if later else ()))
    told = {name: d for name, d in found.items() if name.kind not in silent}
    return Pair(told, OtherDraws(masks, later))
