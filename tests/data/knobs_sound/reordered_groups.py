"""The optimizer's groups come in another order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """The optimizer's groups come in another order."""

    name: ClassVar[str] = "reordered_groups"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        def built(optimizer: Any) -> None:
            optimizer.param_groups.reverse()
            hooks.applied()

        hooks.after_optimizer(built)
