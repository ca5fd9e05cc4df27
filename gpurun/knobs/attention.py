"""Let torch's own kernels compute attention that is written by hand."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.knobs.api import COPIES_MODEL, SCRIPT_COMPILES, Effect, Hooks, Knob, Skip
from gpurun.records.facts import Facts
from gpurun.records.finding import FindingType


class Attention(Knob):
    """`scaled_dot_product_attention` where the script multiplies, takes a softmax and multiplies.

    Helps with long sequences: its kernels never write the scores to memory, whose size grows with
    the square of the length. With a causal mask they skip half of the work. It rewrites the graph
    that dynamo captures of a module, with or without the knob `compile`. It does so only if result
    and gradients on the script's own tensors are as close to float64 as the original's.

    Risks: capturing takes seconds at the first steps. Dropout of the weights draws other numbers.
    Double backward and `jit.trace` do not work. Weights that the script returns or keeps are left
    as they are, and so are scripts that compile.
    """

    name = "attention"
    answers = (FindingType.MEMORY_BANDWIDTH, FindingType.KERNEL_EFFICIENCY)
    effect = Effect.NUMERICS
    choices = ("sdpa",)
    order = 21
    likely = True
    acts_on = "model"

    def candidates(self, facts: Facts) -> Sequence[str] | Skip:
        """Where attention written by hand was seen in the backward graph of a root."""
        if facts.script_compiles():
            return Skip(SCRIPT_COMPILES)
        if "data_parallel" in facts.traits:
            return Skip(COPIES_MODEL)
        if "manual_attention" not in facts.traits:
            return Skip("no attention written by hand was seen")
        return ["sdpa"]

    def apply(self, value: str, hooks: Hooks) -> None:
        """Rewrite what another knob compiles, else capture the modules that hold attention."""
        from gpurun.knobs.applied.attention.module_capture import Capture
        from gpurun.knobs.applied.compiling.compiled_calls import LEANER, REWRITES

        capture = Capture(hooks)
        REWRITES.append(capture.rewritten)
        LEANER.append(capture.rewritten)
        hooks.on_root(capture.root_found)
        hooks.around_root_call(lambda: capture)
        hooks.on_step(capture.step_done)
