"""Compute the cross entropy of large logits in compiled kernels."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.knobs.api import SCRIPT_COMPILES, Effect, Hooks, Knob, Skip
from gpurun.knobs.device_requirements import missing_tool
from gpurun.records.facts import Facts
from gpurun.records.finding import FindingType


class FusedLoss(Knob):
    """Compiled kernels for `cross_entropy` where it takes large logits.

    Beside `autocast`. Log-softmax and loss are one pass over the logits, and their backward is
    another. Helps where vocabularies are large: eager, the loss and its backward move about twice
    as much, and keep another copy of the logits.

    Risks: other rounding in the loss, whose `grad_fn` has another name. Compiling takes seconds at
    the first step. It leaves alone a loss inside a compiled model, scripts that compile or
    differentiate twice, checkpoints around the loss, targets that are probabilities, and other
    losses.
    """

    name = "fused_loss"
    answers = (FindingType.MEMORY_BANDWIDTH,)
    effect = Effect.NUMERICS
    choices = ("cross_entropy",)
    order = 41
    acts_on = "model"
    likely = True

    def candidates(self, facts: Facts) -> Sequence[str] | Skip:
        """On top of autocast; how large the logits are is seen when it runs."""
        if facts.script_compiles():
            return Skip(SCRIPT_COMPILES)
        if "autocast" not in facts.current:
            return Skip("autocast is off")
        missing = missing_tool(facts.device, facts.machine.compute_capability)
        return ["cross_entropy"] if missing is None else Skip(missing)

    def apply(self, value: str, hooks: Hooks) -> None:
        """Stand in for the loss."""
        from gpurun.knobs.applied.fused_cross_entropy import FusedCrossEntropy

        losses = FusedCrossEntropy(hooks)
        losses.install()
        hooks.on_root(losses.root_found)
        hooks.on_step(losses.step_done)
