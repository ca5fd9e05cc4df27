"""Effect classes: how far a change reaches into the training."""

from __future__ import annotations

import enum


class Effect(enum.Enum):
    """What a change does to training; `--allow` bounds what may be applied."""

    PIPELINE = "pipeline"
    """Only how data reach the device."""
    NUMERICS = "numerics"
    """The same algorithm in other rounding or kernels."""
    TRAINING = "training"
    """The algorithm itself: batch size, learning rate."""
