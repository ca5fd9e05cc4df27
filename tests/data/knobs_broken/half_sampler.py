"""A sampler draws from one half of the data set, as often as from the whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """A sampler draws from one half of the data set, as often as from the whole."""

    name: ClassVar[str] = "half_sampler"
    effect: ClassVar[Effect] = Effect.PIPELINE

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        import torch

        class Half:
            def __init__(self, size: int) -> None:
                self.size = size

            def __len__(self) -> int:
                return self.size

            def __iter__(self) -> Any:
                return iter(torch.randint(self.size // 2, (self.size,)).tolist())

        def edit(call: Any) -> None:
            call.arguments.pop("shuffle", None)
            call.arguments["sampler"] = Half(len(call.arguments["dataset"]))
            hooks.applied()

        hooks.before_loader(edit)
