"""From the second pass on the data are no longer shuffled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """From the second pass on the data are no longer shuffled."""

    name: ClassVar[str] = "sorted_later"
    effect: ClassVar[Effect] = Effect.PIPELINE

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        import torch

        original = torch.utils.data.RandomSampler.__iter__

        def indices(sampler: Any) -> Any:
            sampler.passes = getattr(sampler, "passes", 0) + 1
            shuffled = list(original(sampler))
            return iter(shuffled if sampler.passes == 1 else sorted(shuffled))

        torch.utils.data.RandomSampler.__iter__ = indices
        hooks.applied()
