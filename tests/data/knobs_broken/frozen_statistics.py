"""Batch normalisation runs with its stored statistics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """Batch normalisation runs with its stored statistics."""

    name: ClassVar[str] = "frozen_statistics"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        import torch

        original = torch.nn.functional.batch_norm

        def batch_norm(x: Any, mean: Any, variance: Any, *args: Any, **kwargs: Any) -> Any:
            weight, bias, _, momentum, eps = args
            return original(x, mean, variance, weight, bias, False, momentum, eps)

        torch.nn.functional.batch_norm = batch_norm
        hooks.applied()
