"""Dropout takes its random numbers otherwise, as compiled kernels do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """Dropout takes its random numbers otherwise, as compiled kernels do."""

    name: ClassVar[str] = "other_dropout"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        import torch

        def dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
            if not training or p == 0:
                return x
            seed = int(torch.randint(2**31, ()))
            generator = torch.Generator().manual_seed(seed)
            kept = torch.rand(x.shape, generator=generator) >= p
            return x * kept / (1 - p)

        torch.nn.functional.dropout = dropout
        hooks.applied()
