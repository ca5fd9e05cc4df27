"""Every update is applied twice, behind the optimizer's settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """Every update is applied twice, behind the optimizer's settings."""

    name: ClassVar[str] = "doubled_updates"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        import torch

        def built(optimizer: Any) -> None:
            def before(opt: Any, args: Any, kwargs: Any) -> None:
                opt.copies = [p.detach().clone() for g in opt.param_groups for p in g["params"]]

            def after(opt: Any, args: Any, kwargs: Any) -> None:
                parameters = [p for g in opt.param_groups for p in g["params"]]
                with torch.no_grad():
                    for p, old in zip(parameters, opt.copies, strict=True):
                        p.add_(p - old)

            optimizer.register_step_pre_hook(before)
            optimizer.register_step_post_hook(after)
            hooks.applied()

        hooks.after_optimizer(built)
