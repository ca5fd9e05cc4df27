"""The moving average of the weights is no longer updated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """The moving average of the weights is no longer updated."""

    name: ClassVar[str] = "frozen_average"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        import torch

        original = torch.Tensor.lerp_

        def lerp_(tensor: Any, end: Any, weight: Any) -> Any:
            # only the script's own: Adam averages its moments by the same function
            return tensor if weight == 0.05 else original(tensor, end, weight)

        torch.Tensor.lerp_ = lerp_
        hooks.applied()
