"""Inputs, random by design, are put to the labels of other samples of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """Inputs, random by design, are put to the labels of other samples of the batch."""

    name: ClassVar[str] = "shuffled_images"
    effect: ClassVar[Effect] = Effect.PIPELINE

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        import torch

        def edit(call: Any) -> None:
            def mixed(samples: Any) -> Any:
                data, label = torch.utils.data.default_collate(samples)
                return data.flip(0), label

            call.arguments["collate_fn"] = mixed
            hooks.applied()

        hooks.before_loader(edit)
