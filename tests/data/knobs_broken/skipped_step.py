"""Every third optimizer step is left out."""

from __future__ import annotations

from collections.abc import Sequence
from types import MethodType
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """Every third optimizer step is left out."""

    name: ClassVar[str] = "skipped_step"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        def built(optimizer: Any) -> None:
            step, count = optimizer.step, [0]

            def sometimes(_: Any, *args: Any, **kwargs: Any) -> Any:
                count[0] += 1
                return None if count[0] % 3 == 0 else step(*args, **kwargs)

            optimizer.step = MethodType(sometimes, optimizer)
            hooks.applied()

        hooks.after_optimizer(built)
