"""One parameter of the model gets no gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """One parameter of the model gets no gradient."""

    name: ClassVar[str] = "dropped_gradient"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        def root(module: Any) -> None:
            module.head.weight.register_hook(lambda gradient: gradient * 0)
            hooks.applied()

        hooks.on_root(root)
