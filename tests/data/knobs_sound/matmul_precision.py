"""Matrix products may be computed in a lower precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """Matrix products may be computed in a lower precision."""

    name: ClassVar[str] = "matmul_precision"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        """From the model's first call on: a script may have made its labels by a product before."""

        def root_found(_: Any) -> None:
            import torch

            torch.set_float32_matmul_precision(value)
            hooks.applied()

        hooks.on_root(root_found)
