"""The loss is summed over the batch instead of averaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """The loss is summed over the batch instead of averaged."""

    name: ClassVar[str] = "wrong_reduction"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        import torch

        original = torch.nn.functional.cross_entropy

        def cross_entropy(*args: Any, **kwargs: Any) -> Any:
            return original(*args, **{**kwargs, "reduction": "sum"})

        torch.nn.functional.cross_entropy = cross_entropy
        hooks.applied()
