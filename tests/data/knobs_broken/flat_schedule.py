"""The learning rate's schedule has no effect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """The learning rate's schedule has no effect."""

    name: ClassVar[str] = "flat_schedule"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        import torch

        torch.optim.lr_scheduler.LRScheduler.step = lambda *args, **kwargs: None
        hooks.applied()
