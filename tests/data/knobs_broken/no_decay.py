"""A replaced optimizer kernel leaves out the weight decay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """A replaced optimizer kernel leaves out the weight decay."""

    name: ClassVar[str] = "no_decay"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        def built(optimizer: Any) -> None:
            for group in optimizer.param_groups:
                group["weight_decay"] = 0.0
            hooks.applied()

        hooks.after_optimizer(built)
