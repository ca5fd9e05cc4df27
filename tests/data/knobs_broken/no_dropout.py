"""A fused kernel leaves out the dropout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class Planted(Knob):
    """A fused kernel leaves out the dropout."""

    name: ClassVar[str] = "no_dropout"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[Any]:
        return [True]

    def apply(self, value: Any, hooks: Hooks) -> None:
        import torch

        def dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
            return x

        torch.nn.functional.dropout = dropout
        original = torch.nn.functional.scaled_dot_product_attention

        def attention(q: Any, k: Any, v: Any, *args: Any, **kwargs: Any) -> Any:
            kwargs.pop("dropout_p", None)
            return original(q, k, v, *args[:1], **kwargs)

        torch.nn.functional.scaled_dot_product_attention = attention
        hooks.applied()
