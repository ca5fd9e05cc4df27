"""The learning rate is twice what it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """The learning rate is twice what it was."""

    name: ClassVar[str] = "doubled_rate"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        def built(optimizer: Any) -> None:
            for group in optimizer.param_groups:
                group["lr"] *= 2
            hooks.applied()

        hooks.after_optimizer(built)
