"""Gradients are zeroed in place instead of dropped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """Gradients are zeroed in place instead of dropped."""

    name: ClassVar[str] = "zeros_kept"
    effect: ClassVar[Effect] = Effect.PIPELINE

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        import torch

        original = torch.optim.Optimizer.zero_grad

        def zero_grad(optimizer: Any, set_to_none: bool = True) -> None:
            original(optimizer, set_to_none=False)

        torch.optim.Optimizer.zero_grad = zero_grad
        hooks.applied()
