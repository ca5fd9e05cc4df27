"""Two launches' audits -> all named distances between them. Pure functions."""

from __future__ import annotations

from dataclasses import dataclass

from gpurun.same.curve_distances import curve_distances, finite_distances, runaway_distances
from gpurun.same.launch_audit import LaunchAudit
from gpurun.same.named_distance import Distances, Kind
from gpurun.same.output_distances import output_distances
from gpurun.same.sample_distances import sample_distances, samples_drawn_apart
from gpurun.same.setting_distances import setting_distances
from gpurun.same.step_distances import model_drawn_apart, step_distances

DRAWN_ANEW = frozenset({Kind.FIRST_LOSS, Kind.INPUTS, Kind.EVALUATIONS, Kind.EVALUATED_DECISIONS})
"""Kinds that say nothing where other random numbers were drawn."""


@dataclass(frozen=True)
class Pair:
    """Two launches: their distances, and whether random numbers were drawn anew.

    Then samples by design, or dropout, differ. Gradients and curves have the floor of launches
    under other seeds.
    """

    distances: Distances
    drawn: bool


def compare(
    ours: LaunchAudit, theirs: LaunchAudit, *, rounds: bool, steps: int | None = None
) -> Pair:
    """All distances of `ours` from `theirs`.

    `rounds`: one of them may round otherwise, and kernels of another precision draw other masks of
    dropout. `steps`: compare only so many steps of the loss curve; None: all that both have.
    """
    drawn = (
        ours.seed != theirs.seed
        or samples_drawn_apart(ours, theirs)
        or (rounds and model_drawn_apart(ours, theirs))
    )
    found = {
        **finite_distances(ours, theirs),
        **setting_distances(ours, theirs),
        **sample_distances(ours, theirs, drawn=drawn),
        **step_distances(ours, theirs, drawn=drawn, rounds=rounds),
        **output_distances(ours, theirs),
        **curve_distances(ours, theirs, steps),
        **runaway_distances(ours, theirs),
    }
    if drawn:
        found = {name: d for name, d in found.items() if name.kind not in DRAWN_ANEW}
    return Pair(found, drawn)
