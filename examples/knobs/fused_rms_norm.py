"""Compute RMS norms in one kernel where the model spells them out in five operators."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob, Skip
from gpurun.records.facts import Facts

NAMED = "RMSNorm"
"""What the class of a root mean square norm has in its name, whoever wrote it."""


class FusedRmsNorm(Knob):
    """The `forward` of the model's RMSNorm modules as one Triton kernel (closed form on the CPU).

    Helps models in the manner of LLaMA that run eager: an RMS norm by hand reads and writes its
    activations five times forward and more backward, where once is enough. Under torch.compile it
    stands aside, for the compiler fuses these operators itself.

    Risks: sums round differently. A class of that name may compute something else (`1 + weight`, a
    bias): so each module is first compared with its own forward, result and gradients, on the
    script's own input, and one that differs is left alone.
    """

    name: ClassVar[str] = "fused_rms_norm"
    effect: ClassVar[Effect] = Effect.NUMERICS
    order: ClassVar[int] = 42
    acts_on: ClassVar[str] = "model"

    def candidates(self, facts: Facts) -> Sequence[bool] | Skip:
        """On, where there is such a norm and what computes it."""
        if not any(NAMED in kind for root in facts.roots for kind in root.module_types):
            return Skip("the model has no RMS norm")
        if facts.device == "cuda" and importlib.util.find_spec("triton") is None:
            return Skip("Triton is not installed")
        return [True]

    def apply(self, value: bool, hooks: Hooks) -> None:
        """Stand in for the norms of each root when it is found."""
        if value is not True:
            hooks.skipped(f"unknown value {value!r}")
            return
        from .kernels.fused_norms import FusedNorms  # it imports torch, which the launcher has not

        norms = FusedNorms(hooks, NAMED)
        hooks.on_root(norms.root_found)
        hooks.on_step(norms.step_done)
