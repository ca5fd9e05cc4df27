"""Multiply float32 matrices on tensor cores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpurun.knobs.api import NO_MODULE, Effect, Hooks, Knob, Skip
from gpurun.knobs.device_requirements import is_ampere
from gpurun.knobs.source_forms import AfterImport, SourceForm
from gpurun.records.facts import Facts
from gpurun.records.finding import FindingType

if TYPE_CHECKING:
    from torch.nn import Module

OWN = "the script chooses its float32 precision itself"
NO_CORES = "this GPU has no TF32 tensor cores"


class Tf32(Knob):
    """`torch.backends.cuda.matmul.allow_tf32 = True`: float32 products in TensorFloat-32.

    Helps models that stay in float32: inputs are rounded to ten bits of mantissa, sums stay in
    float32, and tensor cores are several times faster. (torch lets convolutions do so by default.)

    Risks: ten bits of mantissa, so the loss guard has to agree. It uses the older of torch's two
    switches, because the newer one makes the older one's getters raise in the script. It leaves
    alone a script that has touched either.
    """

    name = "tf32"
    answers = (FindingType.PRECISION, FindingType.KERNEL_EFFICIENCY)
    effect = Effect.NUMERICS
    order = 34
    acts_on = "model"
    choices = (True,)
    likely = True

    def candidates(self, facts: Facts) -> Sequence[bool] | Skip:
        """On, where there are tensor cores for it and float32 to multiply."""
        if facts.device != "cuda":
            return Skip("the model is not on a GPU")
        if not is_ampere(facts.machine.compute_capability):
            return Skip(NO_CORES)
        if not facts.roots:
            return NO_MODULE
        if not any("float32" in root.dtypes for root in facts.roots):
            return Skip("the model holds no float32 parameters")
        return [True]

    def source_forms(self, value: bool) -> Sequence[SourceForm]:
        """The switch."""
        return [AfterImport("torch.backends.cuda.matmul.allow_tf32 = True")]

    def apply(self, value: bool, hooks: Hooks) -> None:
        """Switch it on once the script has made its model, and so its own choice."""

        def root_found(module: Module) -> None:
            import torch

            try:
                chosen = torch.backends.cuda.matmul.allow_tf32
            except RuntimeError:  # only the newer switch was used
                chosen = True
            if chosen:
                hooks.skipped(OWN)
                return
            device = next(module.parameters()).device
            if device.type != "cuda":
                hooks.skipped("the model is not on a GPU")
                return
            if not is_ampere(torch.cuda.get_device_capability(device)):
                hooks.skipped(NO_CORES)
                return
            torch.backends.cuda.matmul.allow_tf32 = True
            hooks.applied("float32 products in TF32")

        hooks.on_root(root_found)
