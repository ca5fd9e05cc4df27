"""Outputs pass through half precision under a scale that overflows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """Outputs pass through half precision under a scale that overflows it."""

    name: ClassVar[str] = "half_precision_overflow"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        import torch

        from gpurun.knobs.applied.root_calls import map_tensors

        def half(tensor: Any) -> Any:
            return (tensor * 65000).half().float() / 65000

        hooks.on_root(lambda module: hooks.applied())
        hooks.around_root_call(torch.enable_grad, lambda out: map_tensors(out, half))
