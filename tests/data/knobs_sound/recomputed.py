"""Activations of the transformer's layers are recomputed in the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """Activations of the transformer's layers are recomputed in the backward pass."""

    name: ClassVar[str] = "recomputed"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        import torch
        from torch.utils.checkpoint import checkpoint

        layer = torch.nn.TransformerEncoderLayer
        original = layer.forward

        def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            return checkpoint(original, module, *args, use_reentrant=False, **kwargs)

        layer.forward = forward
        hooks.applied()
