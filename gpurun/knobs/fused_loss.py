"""Compute the loss of half-precision outputs in fused kernels, without a float32 copy of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from gpurun.knobs.api import SCRIPT_COMPILES, Effect, Hooks, Knob, Skip
from gpurun.knobs.device_requirements import missing_tool
from gpurun.records.facts import Facts
from gpurun.records.finding import FindingType


class FusedLoss(Knob):
    """One compiled kernel for cast, log-softmax and loss where `cross_entropy` takes large logits.

    Beside `autocast`. The model's output is not cast to float32 at once, but when the script first
    reads its numbers. `torch.nn.functional.cross_entropy` still computes in float32, without
    writing float32 logits or their gradient to memory. Helps where vocabularies are large: eager
    cast, loss and backward move some ten times what it does. Where the model is compiled as well,
    and ends in a linear layer, that computes rows of whole cache lines.

    Risks: other rounding in the loss. `type(logits)` is a subclass of Tensor, each `grad_fn` has
    another name, and gradients of logits are rounded to half precision before a script sees them.
    Extension modules that take the address of logits past torch raise. Compiling takes seconds at
    the first step. It leaves alone a loss inside the model's forward, scripts that compile,
    checkpoints around the loss, targets that are probabilities, and other losses. These get the
    logits cast as before.
    """

    name = "fused_loss"
    answers = (FindingType.MEMORY_BANDWIDTH,)
    effect = Effect.NUMERICS
    choices = ("cross_entropy",)
    order = 41
    acts_on = "model"
    likely = True

    def candidates(self, facts: Facts) -> Sequence[str] | Skip:
        """On top of autocast; how large the outputs are is seen when it runs."""
        if facts.script_compiles():
            return Skip(SCRIPT_COMPILES)
        if "autocast" not in facts.current:
            return Skip("it saves autocast's cast, and autocast is off")
        missing = missing_tool(facts.device, facts.machine.compute_capability)
        return ["cross_entropy"] if missing is None else Skip(missing)

    def apply(self, value: str, hooks: Hooks) -> None:
        """Stand by for what roots return in half precision."""
        from gpurun.knobs.applied.compiling.compiled_calls import REWRITES
        from gpurun.knobs.applied.fused_cross_entropy import FusedCrossEntropy
        from gpurun.knobs.applied.padded_logits import padding
        from gpurun.knobs.applied.root_outputs import STAND_INS

        losses = FusedCrossEntropy(hooks)
        STAND_INS.append(losses)
        REWRITES.append(padding(losses.pads))
        hooks.on_root(losses.root_found)
        hooks.on_step(losses.step_done)
        hooks.around_root_call(nullcontext, inputs=losses.inputs)
