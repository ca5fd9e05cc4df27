"""Gradients are no longer clipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """Gradients are no longer clipped."""

    name: ClassVar[str] = "no_clipping"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        import torch

        torch.nn.utils.clip_grad_norm_ = lambda *args, **kwargs: None
        hooks.applied()
