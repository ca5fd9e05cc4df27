"""Was a call without gradients given the same inputs in two trials?"""

from __future__ import annotations

import math
from statistics import fmean

from gpurun.knobs.api import Effect
from gpurun.records.messages.model_outputs import OutputsEvent, TensorFigures
from gpurun.tuner.guard.output_differences import OutputTensor

TRAINED = 0.1
"""After training steps weights differ by rounding: evaluations may then be off this much."""
SAME_INPUT = {Effect.PIPELINE: 1e-4, Effect.NUMERICS: 0.02}
"""Relative RMS difference of floating inputs that count as the same: they may be computed too."""


def same_inputs(ours: OutputsEvent, theirs: OutputsEvent, effect: Effect) -> bool:
    """True if inputs are the same but for rounding, or drifted no further than training explains.

    Inputs may be computed by what was trained: a recurrent state, or what a layer is given that the
    script calls by itself.
    """
    if len(ours.inputs) != len(theirs.inputs):
        return False
    drift = TRAINED if theirs.trained else 0.0
    return all(
        _same(a, b, SAME_INPUT[effect], drift)
        for a, b in zip(ours.inputs, theirs.inputs, strict=True)
    )


def _same(ours: TensorFigures, theirs: TensorFigures, rounding: float, drift: float) -> bool:
    """True if a tensor holds the same numbers but for rounding; integers must be equal.

    A drift is measured against the scatter of the numbers: two batches of temperatures near 290 K
    differ by a few percent of 290 K, and by more than their scatter.
    """
    if ours == theirs:
        return True
    if (ours.path, ours.dtype, ours.shape) != (theirs.path, theirs.dtype, theirs.shape):
        return False
    if not OutputTensor("", theirs.path, theirs.dtype).floating:
        return False
    pairs = [
        (a, b)
        for a, b in zip(ours.values, theirs.values, strict=False)
        if a is not None and b is not None
    ]
    apart = math.sqrt(math.fsum((a - b) ** 2 for a, b in pairs))
    numbers = [b for _, b in pairs]
    middle = fmean(numbers) if numbers else 0.0
    size = math.sqrt(math.fsum(b * b for b in numbers))
    scatter = math.sqrt(math.fsum((b - middle) ** 2 for b in numbers))
    return apart <= max(rounding * size, drift * scatter)
