"""Momentum is lost: a kernel for another optimizer runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """Momentum is lost: a kernel for another optimizer runs."""

    name: ClassVar[str] = "other_optimizer"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        def built(optimizer: Any) -> None:
            optimizer.register_step_pre_hook(lambda opt, *_: opt.state.clear())
            hooks.applied()

        hooks.after_optimizer(built)
