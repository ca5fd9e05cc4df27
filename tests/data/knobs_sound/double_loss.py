"""The loss is summed in double precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """The loss is summed in double precision."""

    name: ClassVar[str] = "double_loss"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        import torch

        original = torch.nn.functional.cross_entropy

        def cross_entropy(logits: Any, *args: Any, **kwargs: Any) -> Any:
            return original(logits.double(), *args, **kwargs).float()

        torch.nn.functional.cross_entropy = cross_entropy
        hooks.applied()
