"""Compute the loss of half-precision outputs in fused kernels, without a float32 copy of them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob, Skip
from gpurun.knobs.compiling.compiler_requirements import missing_tool
from gpurun.knobs.skip_reasons import SCRIPT_COMPILES
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

    name: ClassVar[str] = "fused_loss"
    answers: ClassVar[tuple[FindingType, ...]] = (FindingType.MEMORY_BANDWIDTH,)
    effect: ClassVar[Effect] = Effect.NUMERICS
    choices: ClassVar[tuple[str, ...]] = ("cross_entropy",)
    order: ClassVar[int] = 41
    acts_on: ClassVar[str] = "model"
    likely: ClassVar[bool] = True

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
        from gpurun.knobs.applied.root_outputs import STAND_INS
        from gpurun.knobs.compiling.applied.graph_rewrites import REWRITES
        from gpurun.knobs.loss.applied.fused_cross_entropy import FusedCrossEntropy
        from gpurun.knobs.loss.applied.padded_logits import padding

        losses = FusedCrossEntropy(hooks)
        STAND_INS.append(losses)
        REWRITES.append(padding(losses.pads))
        hooks.on_root(losses.root_found)
        hooks.on_step(losses.step_done)
        hooks.around_root_call(nullcontext, inputs=losses.inputs)
