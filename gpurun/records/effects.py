"""Effect classes: how far a change reaches into the training."""

from __future__ import annotations

import enum


class Effect(enum.Enum):
    """The effect of a change on training; `--allow` limits the effects that may be applied."""

    PIPELINE = "pipeline"
    """Only how data reach the device."""
    NUMERICS = "numerics"
    """The same algorithm in other rounding or kernels."""
    TRAINING = "training"
    """The algorithm itself: batch size, learning rate."""


DEFAULT_ALLOW = (Effect.PIPELINE, Effect.NUMERICS)
"""The effects that may be applied where nobody says others."""
ALLOW_ALL = "--allow " + ",".join(effect.value for effect in Effect)
"""What texts advise: a list replaces the default, so `--allow training` would rule out the rest."""
