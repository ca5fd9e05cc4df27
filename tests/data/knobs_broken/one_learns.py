"""Of two optimizers only the first does anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """Of two optimizers only the first does anything."""

    name: ClassVar[str] = "one_learns"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        import torch

        built_before: list[Any] = []

        def built(optimizer: Any) -> None:
            built_before.append(optimizer)
            if len(built_before) == 2:
                parameters = [p for g in optimizer.param_groups for p in g["params"]]
                kept = [p.detach().clone() for p in parameters]

                def undo(*_: Any) -> None:
                    with torch.no_grad():
                        for p, old in zip(parameters, kept, strict=True):
                            p.copy_(old)

                optimizer.register_step_post_hook(undo)
                hooks.applied()

        hooks.after_optimizer(built)
