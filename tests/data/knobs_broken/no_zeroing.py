"""Gradients are never zeroed: each step carries those before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """Gradients are never zeroed: each step carries those before it."""

    name: ClassVar[str] = "no_zeroing"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        import torch

        torch.optim.Optimizer.zero_grad = lambda *args, **kwargs: None
        hooks.applied()
