"""Only the first half of the data set is read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """Only the first half of the data set is read."""

    name: ClassVar[str] = "half_data"
    effect: ClassVar[Effect] = Effect.PIPELINE

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        from torch.utils.data import Subset

        def edit(call: Any) -> None:
            dataset = call.arguments["dataset"]
            call.arguments["dataset"] = Subset(dataset, range(len(dataset) // 2))
            hooks.applied()

        hooks.before_loader(edit)
