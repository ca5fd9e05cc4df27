"""Half precision under a loss scale: one that fits, or one that loses gradients in silence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts

SCALES = {"fits": 2.0**10, "overflows": 2.0**22, "zeroed": 2.0**22, "underflows": 2.0**-14}


class HalfPrecision(Knob):
    """The forward pass runs in float16 and the loss is scaled.

    "overflows": what became infinite or NaN is set to zero; "zeroed": so is every gradient of such
    a step; "underflows": the scale has shrunk so far that small gradients are lost.
    """

    name: ClassVar[str] = "half_precision"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[str]:
        return list(SCALES)

    def apply(self, value: str, hooks: Hooks) -> None:
        import torch

        from gpurun.knobs.applied.root_calls import map_tensors

        parameters: list[Any] = []

        def root_found(module: Any) -> None:
            parameters.extend(module.parameters())
            hooks.applied()

        def half() -> Any:
            return torch.autocast(parameters[0].device.type, torch.float16)

        def unscale() -> None:
            gradients = [p.grad for p in parameters if p.grad is not None]
            for gradient in gradients:
                gradient /= SCALES[value]
            if value == "zeroed" and not all(bool(g.isfinite().all()) for g in gradients):
                for gradient in gradients:
                    gradient.zero_()
            for gradient in gradients:
                gradient.nan_to_num_(0.0, 0.0, 0.0)

        hooks.on_root(root_found)
        hooks.around_root_call(half, lambda out: map_tensors(out, torch.Tensor.float))
        hooks.around_backward(lambda loss: loss * SCALES[value], unscale)
