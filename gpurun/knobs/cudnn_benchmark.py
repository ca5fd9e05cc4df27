"""Let cuDNN time its convolution algorithms and take the fastest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpurun.knobs.api import NO_MODULE, Effect, Hooks, Knob, Skip
from gpurun.knobs.source_forms import AfterImport, SourceForm
from gpurun.records.facts import Facts
from gpurun.records.finding import FindingType

if TYPE_CHECKING:
    from torch.nn import Module


class CudnnBenchmark(Knob):
    """`torch.backends.cudnn.benchmark = True`: algorithms are chosen by timing, not by heuristics.

    Helps convolutional models whose input shapes do not change: each new shape is timed once. For
    ResNet-50 in bfloat16 that took 9 s a launch on an H100, and no gain could be seen. So it is
    tried by itself, if there is time, and not among the likely changes.

    Risks: shapes that change all the time are timed all the time. The chosen algorithm, and with it
    the rounding, may differ from run to run. Scripts that ask for deterministic algorithms, or
    choose themselves, are left alone.
    """

    name = "cudnn_benchmark"
    answers = (FindingType.KERNEL_EFFICIENCY,)
    effect = Effect.NUMERICS
    order = 32
    acts_on = "model"
    choices = (True,)

    def candidates(self, facts: Facts) -> Sequence[bool] | Skip:
        """On, where the model convolves on a GPU."""
        if facts.device != "cuda":
            return Skip("the model is not on a GPU")
        if not facts.roots:
            return NO_MODULE
        if not any("Conv" in kind for root in facts.roots for kind in root.module_types):
            return Skip("the model has no convolution")
        return [True]

    def source_forms(self, value: bool) -> Sequence[SourceForm]:
        """The switch."""
        return [AfterImport("torch.backends.cudnn.benchmark = True")]

    def apply(self, value: bool, hooks: Hooks) -> None:
        """Switch it on once the script has made its model, and so its own choice."""

        def root_found(module: Module) -> None:
            import torch

            cudnn = torch.backends.cudnn
            if cudnn.deterministic or torch.are_deterministic_algorithms_enabled():
                hooks.skipped("the script asks for deterministic algorithms")
            elif cudnn.benchmark:
                hooks.skipped("the script switches it on itself")
            else:
                cudnn.benchmark = True
                hooks.applied("convolution algorithms are timed")

        hooks.on_root(root_found)
