"""Convolutions run on channels-last memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, KnobBase
from gpurun.records.facts import Facts


class Planted(KnobBase):
    """Convolutions run on channels-last memory."""

    name: ClassVar[str] = "channels_last"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        import torch

        def root(module: Any) -> None:
            module.to(memory_format=torch.channels_last)
            hooks.applied()

        hooks.on_root(root)
