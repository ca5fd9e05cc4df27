"""Was a call without gradients given the same inputs in two trials?"""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.knobs.api import Effect
from gpurun.records.messages.model_outputs import OutputsEvent, TensorFigures
from gpurun.tuner.guard.output_differences import Call, Difference, OutputTensor

TRAINED = 0.1
"""After training steps weights differ by rounding: evaluations may then be off this much."""
SAME_INPUT = {Effect.PIPELINE: 1e-4, Effect.NUMERICS: 0.02}
"""Relative RMS difference of floating inputs that count as the same: they may be computed too."""


def by_inputs(calls: Sequence[Call], effect: Effect) -> tuple[list[Call], list[Call]]:
    """The calls that were given the same inputs, and those that were not.

    Inputs that training computes (of layers that the script calls one by one) drift apart as
    outputs do. Data that are not the same differ in a module's first call already.
    """
    found: tuple[list[Call], list[Call]] = ([], [])
    seen: set[str] = set()
    for ours, theirs in calls:
        later = theirs.trained and theirs.module in seen
        same = same_inputs(ours, theirs, effect, TRAINED if later else 0.0)
        found[0 if same else 1].append((ours, theirs))
        seen.add(theirs.module)
    return found


def same_inputs(
    ours: OutputsEvent, theirs: OutputsEvent, effect: Effect, least: float = 0.0
) -> bool:
    """True if inputs are equal but for rounding; `least`: what may differ in any case."""
    if len(ours.inputs) != len(theirs.inputs):
        return False
    tolerance = SAME_INPUT[effect]
    if theirs.trained:  # an input may be computed: a recurrent state, or a layer's called by itself
        tolerance = TRAINED if effect is Effect.NUMERICS else SAME_INPUT[Effect.NUMERICS]
    tolerance = max(tolerance, least)
    return all(_same(a, b, tolerance) for a, b in zip(ours.inputs, theirs.inputs, strict=True))


def _same(ours: TensorFigures, theirs: TensorFigures, tolerance: float) -> bool:
    """True if a tensor holds the same numbers but for rounding; integers must be equal."""
    if ours == theirs:
        return True
    place = OutputTensor("", theirs.path, theirs.dtype)
    if (ours.path, ours.dtype, ours.shape) != (theirs.path, theirs.dtype, theirs.shape):
        return False
    difference = Difference()
    difference.add(ours, theirs)
    return place.floating and (difference.relative or 0.0) <= tolerance
