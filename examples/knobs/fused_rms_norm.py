"""Compute RMS norms in one kernel where the model spells them out in five operators."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, KnobBase, Skip
from gpurun.knobs.applied.replaced_forwards import ReplacedForwards, cannot_choose
from gpurun.records.facts import Facts

NAMED = "RMSNorm"
"""What the class of a root mean square norm has in its name, whoever wrote it."""
EPSILONS = ("eps", "variance_epsilon", "epsilon")
"""Names under which people keep what is added to the mean square."""
TOLERANCE, LOW_TOLERANCE = 1e-4, 3e-2
"""Largest deviation from the model's own result, as a part of it: float32, half precision."""


class FusedRmsNorm(KnobBase):
    """The `forward` of the model's RMSNorm modules as one Triton kernel (closed form on the CPU).

    Helps models in the manner of LLaMA that run eager: an RMS norm by hand reads and writes its
    activations five times forward and more backward, where once is enough. Under torch.compile it
    stands aside, for the compiler fuses these operators itself.

    How it bites: sums round differently. A class of that name may compute something else (`1 +
    weight`, a bias): so each module is first compared with its own forward, result and gradients,
    on the script's own input, and one that differs is left alone.
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
        norms = _Norms(hooks)
        hooks.on_root(norms.root_found)
        hooks.on_step(norms.step_done)


class _Norms:
    """The norms that run fused. The entry of each is what it was found to agree on: by kind of
    input, the data type that its own forward returns.
    """

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks
        self._called = False
        self._forwards: ReplacedForwards[dict[Any, Any]] = ReplacedForwards(self._run)

    def root_found(self, root: Any) -> None:
        """Choose the norms of a new root."""
        norms = [m for m in root.modules() if NAMED in type(m).__name__]
        if not norms:
            self._hooks.skipped("the model has no RMS norm")
        for module in norms:
            reason = cannot_choose(module)
            if reason is None:
                self._forwards.choose(module, {})
            else:
                self._hooks.skipped(f"{type(module).__name__}: {reason}")

    def step_done(self, step: int) -> None:
        """Say so where the model is compiled and nothing was left to do."""
        if step == 1 and not self._called:
            self._hooks.skipped("no RMS norm is called outside of compiled code")

    def _run(self, module: Any, agreed: dict[Any, Any], original: Any, args: Any, more: Any) -> Any:
        import torch

        from .kernels.rms_norm import rms_norm

        self._called = True
        x = args[0] if len(args) == 1 and not more else None
        if type(x) is not torch.Tensor or torch.jit.is_tracing():
            return original(module, *args, **more)
        autocast = torch.is_autocast_enabled(x.device.type)
        kind = (x.dtype, x.device, x.shape[-1:], module.training, autocast)
        if kind not in agreed:
            # gradients can only be compared where there are some
            if not torch.is_grad_enabled() or not self._agrees(module, agreed, kind, original, x):
                return original(module, x)
        return rms_norm(x, module.weight, _epsilon(module, x), agreed[kind])

    def _agrees(self, module: Any, agreed: Any, kind: Any, original: Any, x: Any) -> bool:
        """Whether both ways compute the same; if not, the module is left to its own forward."""
        name = type(module).__name__
        try:
            dtype, objection = _compared(original, module, x)
        except Exception as error:
            dtype, objection = None, f"{type(error).__name__}: {error}"
        if objection is None:
            agreed[kind] = dtype
            self._hooks.applied(f"{name} on {x.device.type}")
            return True
        self._forwards.leave(module)
        self._hooks.skipped(f"{name} is left as it is: {objection}")
        return False


def _compared(original: Any, module: Any, x: Any) -> tuple[Any, str | None]:
    """The data type of `original`'s result, and what speaks against computing it our way."""
    import torch

    from .kernels.rms_norm import rms_norm

    parameters = dict(module.named_parameters())
    weight = parameters.get("weight")
    if list(parameters) != ["weight"] or weight is None or weight.shape != x.shape[-1:]:
        return None, "it has other parameters than one weight a feature"
    probe = x.detach().clone().requires_grad_()
    theirs = original(module, probe)
    ours = rms_norm(probe, weight, _epsilon(module, x), theirs.dtype)
    # no random numbers here: the script's own draws must stay what they are
    slope = torch.arange(x.numel(), device=x.device).cos().view(x.shape).to(theirs.dtype)
    leaves = [probe, weight] if weight.requires_grad else [probe]
    expected = (theirs, *torch.autograd.grad(theirs, leaves, slope))
    computed = (ours, *torch.autograd.grad(ours, leaves, slope))
    named = ("its result", "its input's gradient", "its weight's gradient")[: len(computed)]
    for what, a, b in zip(named, computed, expected, strict=True):
        low = min(torch.finfo(t.dtype).bits for t in (a, b, x)) < 32
        bound = (LOW_TOLERANCE if low else TOLERANCE) * b.abs().max()
        if not bool((a - b).abs().max() <= bound):
            return None, f"{what} differs"
    return theirs.dtype, None


def _epsilon(module: Any, x: Any) -> float:
    import torch

    for name in EPSILONS:
        value = getattr(module, name, None)
        if value is not None:
            return float(value)
    return float(torch.finfo(x.dtype).eps)  # torch's own default
