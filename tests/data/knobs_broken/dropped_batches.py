"""The loader loses the last batches of each pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """The loader loses the last batches of each pass."""

    name: ClassVar[str] = "dropped_batches"
    effect: ClassVar[Effect] = Effect.PIPELINE

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        import torch

        original = torch.utils.data.BatchSampler.__iter__

        def batches(sampler: Any) -> Any:
            return iter(list(original(sampler))[:-3])

        torch.utils.data.BatchSampler.__iter__ = batches
        hooks.applied()
