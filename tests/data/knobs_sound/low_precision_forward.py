"""The model's forward runs under autocast in bfloat16, outputs are cast back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """The model's forward runs under autocast in bfloat16, outputs are cast back."""

    name: ClassVar[str] = "low_precision_forward"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        import torch

        from gpurun.knobs.applied.root_calls import map_tensors

        def up(tensor: Any) -> Any:
            return tensor.float() if tensor.dtype is torch.bfloat16 else tensor

        device = "cuda" if torch.cuda.is_available() else "cpu"
        hooks.on_root(lambda module: hooks.applied())
        hooks.around_root_call(
            lambda: torch.autocast(device, torch.bfloat16), lambda out: map_tensors(out, up)
        )
