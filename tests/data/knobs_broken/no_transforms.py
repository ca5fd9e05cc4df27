"""Samples are cached after their first fetch, random transforms included."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """Samples are cached after their first fetch, random transforms included."""

    name: ClassVar[str] = "no_transforms"
    effect: ClassVar[Effect] = Effect.PIPELINE

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        class Cached:
            def __init__(self, dataset: Any) -> None:
                self.dataset = dataset
                self.seen: dict[int, Any] = {}

            def __len__(self) -> int:
                return len(self.dataset)

            def __getitem__(self, index: int) -> Any:
                if index not in self.seen:
                    self.seen[index] = self.dataset[index]
                return self.seen[index]

        def edit(call: Any) -> None:
            call.arguments["dataset"] = Cached(call.arguments["dataset"])
            hooks.applied()

        hooks.before_loader(edit)
