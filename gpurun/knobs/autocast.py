"""Run the model's forward in bfloat16, or on older GPUs in float16, where that is safe."""

from __future__ import annotations

from collections.abc import Sequence

from gpurun.knobs import device_requirements
from gpurun.knobs.api import (
    EMULATED_BFLOAT16,
    HALF_PARAMETERS,
    NO_MODULE,
    OWN_PRECISION,
    Effect,
    Hooks,
    Knob,
    Skip,
)
from gpurun.knobs.source_forms import AroundCalls, SourceForm
from gpurun.records.facts import Facts
from gpurun.records.finding import FindingType

IN_BFLOAT16 = """\
def in_bfloat16(module, *args, **kwargs):
    \"\"\"Call a module under autocast, and return what it returns in float32.\"\"\"
    device = next(module.parameters()).device.type
    with torch.autocast(device, dtype=torch.bfloat16):
        outputs = module(*args, **kwargs)
    return tree_map(
        lambda x: x.float() if torch.is_tensor(x) and x.is_floating_point() else x, outputs
    )
"""


class Autocast(Knob):
    """`torch.autocast` with bfloat16 ("bf16") around the root module's forward.

    Helps wherever matrix products and convolutions take the time: tensor cores are many times
    faster in half precision, and activations take half the memory. Floating outputs are cast back
    to float32, so the loss and everything after it get the same types as before. "fp16" is for GPUs
    whose tensor cores know no bfloat16: the loss is scaled while `backward` runs (`loss_scale`).

    Risks: eight bits of mantissa, so the loss guard has to agree. Casting large logits back to
    float32 costs memory, unless `fused_loss` spares it. A launch-bound model gets slower. Scripts
    that autocast, scale their gradients or hold half-precision parameters are left alone, as are
    processors that emulate it. In float16 large activations overflow. Such a step is skipped,
    though not by the learning rate's schedule, and each step waits for this check. Code that reads
    gradients inside `backward`, closures, and optimizers with their own `step` end the knob.
    """

    name = "autocast"
    answers = (FindingType.PRECISION, FindingType.KERNEL_EFFICIENCY)
    effect = Effect.NUMERICS
    choices = ("bf16", "fp16")
    order = 40
    acts_on = "model"
    likely = True
    saves_memory = True

    def candidates(self, facts: Facts) -> Sequence[str] | Skip:
        """bfloat16, where the hardware computes in it and the script leaves it to us.

        float16 is asked for by hand: its range is small, and the scale has to find its place.
        """
        own = next((OWN_PRECISION[trait] for trait in OWN_PRECISION if trait in facts.traits), None)
        if own is not None:
            return Skip(own)
        if not facts.roots:
            return NO_MODULE
        if facts.out_of_memory and not facts.current:
            return Skip("the script does not run as it is: its rounding cannot be compared")
        if any(dtype in ("float16", "bfloat16") for r in facts.roots for dtype in r.dtypes):
            return Skip(HALF_PARAMETERS)
        capability = facts.machine.compute_capability
        if facts.device == "cuda" and device_requirements.is_float16_only(capability):
            return Skip('this GPU has no bfloat16 tensor cores; "fp16" needs --settings')
        if facts.device == "cuda" and not device_requirements.is_ampere(capability):
            return Skip("this GPU has no tensor cores for half precision")
        if facts.device == "cpu" and not device_requirements.native_on_cpu():
            return Skip(EMULATED_BFLOAT16)
        return ["bf16"]

    def source_forms(self, value: str) -> Sequence[SourceForm]:
        """Autocast around the model's calls; float16 would need a scaler in the training loop."""
        if value != "bf16":
            return []
        imports = ("import torch", "from torch.utils._pytree import tree_map")
        return [AroundCalls("in_bfloat16", IN_BFLOAT16, imports)]

    def apply(self, value: str, hooks: Hooks) -> None:
        """Stand around the calls of the roots."""
        from gpurun.knobs.applied.autocast_calls import AutocastCalls
        from gpurun.knobs.applied.loss_scale import LossScale
        from gpurun.knobs.applied.root_calls import COPIED_LATER

        calls = AutocastCalls(hooks, value)
        if value == "fp16":
            LossScale(hooks, calls.is_on, calls.refuse)
        COPIED_LATER.append(calls.copies)
        hooks.on_root(calls.root_found)
        hooks.around_root_call(lambda: calls, calls.output)
