"""Keep images and convolution weights in the memory order that tensor cores read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpurun.knobs.api import NO_MODULE, Effect, Hooks, Knob, Skip
from gpurun.knobs.source_forms import AfterOptimizer, SourceForm
from gpurun.records.facts import Facts
from gpurun.records.finding import FindingType

if TYPE_CHECKING:
    from torch.nn import Module


class ChannelsLast(Knob):
    """`module.to(memory_format=torch.channels_last)` on root modules with 2-D convolutions.

    Helps convolutions in bfloat16 and TF32: their kernels want the channels innermost and otherwise
    transpose in and out. A convolution with such weights hands on such activations, so the weights
    alone are changed, in place: parameters stay the objects that the optimizer holds.

    Not tried on a compiled model: the compiler orders memory itself, and trying it compiles anew.
    On an H200 that took 94 s for a ResNet-50, which then had a third of the speed.

    Risks: it can lose. A later `.view()` of an activation raises. The strides of saved weights are
    others, their values not.
    """

    name = "channels_last"
    answers = (FindingType.KERNEL_EFFICIENCY,)
    effect = Effect.NUMERICS
    order = 23
    acts_on = "model"
    choices = (True,)

    def candidates(self, facts: Facts) -> Sequence[bool] | Skip:
        """On, where the model convolves images on a GPU."""
        if facts.device != "cuda":
            return Skip("the model is not on a GPU")
        if not facts.roots:
            return NO_MODULE
        if not any("Conv2d" in root.module_types for root in facts.roots):
            return Skip("the model has no 2-D convolution")
        if "compile" in facts.current or facts.script_compiles():
            return Skip("the model is compiled: the compiler orders its memory")
        return [True]

    def source_forms(self, value: bool) -> Sequence[SourceForm]:
        """The model's weights in that order."""
        return [AfterOptimizer("{model}.to(memory_format=torch.channels_last)")]

    def apply(self, value: bool, hooks: Hooks) -> None:
        """Reorder the weights of each root before its first training call."""

        def root_found(module: Module) -> None:
            import torch

            kernels = [p for p in module.parameters() if p.dim() == 4 and max(p.shape[2:]) > 1]
            if not kernels:
                hooks.skipped("the model has no 2-D convolution")
            elif all(p.is_contiguous(memory_format=torch.channels_last) for p in kernels):
                hooks.skipped("the script itself keeps its weights so")
            else:
                module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
                hooks.applied(f"{len(kernels)} convolution weights")

        hooks.on_root(root_found)
