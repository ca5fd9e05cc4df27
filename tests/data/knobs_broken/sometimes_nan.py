"""Now and then a kernel returns NaN: one step in twenty, at another place each launch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, KnobBase
from gpurun.records.facts import Facts


class Planted(KnobBase):
    """Now and then a kernel returns NaN: one step in twenty, at another place each launch."""

    name: ClassVar[str] = "sometimes_nan"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        import random
        import time

        from gpurun.knobs.outputs import map_tensors

        dice = random.Random(time.time_ns())

        def sometimes(tensor: Any) -> Any:
            return tensor * float("nan") if dice.random() < 0.05 else tensor

        import torch

        hooks.on_root(lambda module: hooks.applied())
        hooks.around_root_call(torch.enable_grad, lambda out: map_tensors(out, sometimes))
