"""Workers put labels to other samples of their batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """Workers put labels to other samples of their batch."""

    name: ClassVar[str] = "shuffled_labels"
    effect: ClassVar[Effect] = Effect.PIPELINE

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        import torch

        def edit(call: Any) -> None:
            collate = call.arguments.get("collate_fn") or torch.utils.data.default_collate

            def mixed(samples: Any) -> Any:
                data, label = collate(samples)
                return data, label.roll(1)

            call.arguments["collate_fn"] = mixed
            hooks.applied()

        hooks.before_loader(edit)
