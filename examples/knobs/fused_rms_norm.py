"""Compute RMS norms in one kernel where the model spells them out in five operators."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from gpurun.knobs.api import Effect, Hooks, KnobBase, Skip
from gpurun.records.facts import Facts
from gpurun.records.frames import drop_frame

NAMED = "RMSNorm"
"""What the class of a root mean square norm has in its name, whoever wrote it."""
EPSILONS = ("eps", "variance_epsilon", "epsilon")
"""Names under which people keep what is added to the mean square."""
TOLERANCE, LOW_TOLERANCE = 1e-4, 3e-2
"""Largest deviation from the model's own result, as a part of it: float32, half precision."""


class FusedRmsNorm(KnobBase):
    """The `forward` of the model's RMSNorm classes as one Triton kernel (closed form on the CPU).

    Helps models in the manner of LLaMA that run eager: an RMS norm by hand reads and writes its
    activations five times forward and more backward, where once is enough. Under torch.compile it
    stands aside, for the compiler fuses these operators itself.

    How it bites: sums round differently. A class of that name may compute something else (`1 +
    weight`, a bias): so each module is first compared with its own forward, result and gradients,
    on the script's own input, and a class of which one module differs is left alone.
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
        """Stand in for the classes of each root when it is found."""
        if value is not True:
            hooks.skipped(f"unknown value {value!r}")
            return
        stand_ins: dict[type, _StandIn] = {}

        def root_found(root: Any) -> None:
            classes = {type(m) for m in root.modules() if NAMED in type(m).__name__}
            if not classes:
                hooks.skipped("the model has no RMS norm")
            for cls in classes - stand_ins.keys():
                stand_ins[cls] = _StandIn(cls, hooks)
                stand_ins[cls].install()

        def step_done(step: int) -> None:
            if step == 1 and not any(stand_in.called for stand_in in stand_ins.values()):
                hooks.skipped("no RMS norm is called outside of compiled code")

        hooks.on_root(root_found)
        hooks.on_step(step_done)


class _StandIn:
    """For the `forward` of one class: on the class, so that copies and pickles are as without us.

    `called`: whether it ever was, outside of what torch.compile traces. `_agreed`: by module and
    kind of input, the data type that the model's own forward returns.
    """

    def __init__(self, cls: Any, hooks: Hooks) -> None:
        self.called = False
        self._cls = cls
        self._hooks = hooks
        self._original = cls.forward
        self._inherited = "forward" not in vars(cls)
        self._agreed: WeakKeyDictionary[Any, dict[Any, Any]] = WeakKeyDictionary()
        self._given_up = False

    def install(self) -> None:
        """Take the place of `forward`."""
        import torch

        original, call, is_compiling = self._original, self._call, torch.compiler.is_compiling

        def forward(module: Any, *args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return original(module, *args, **kwargs)
            fused = call(module, *args) if len(args) == 1 and not kwargs else None
            if fused is not None:
                return fused
            try:
                return original(module, *args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise

        self._cls.forward = functools.update_wrapper(forward, original)

    def _call(self, module: Any, x: Any) -> Any:
        """The fused result, None where the model's own forward has to compute it."""
        import torch

        from .kernels.rms_norm import rms_norm

        self.called = True
        if self._given_up or type(x) is not torch.Tensor or torch.jit.is_tracing():
            return None
        autocast = torch.is_autocast_enabled(x.device.type)
        kind = (x.dtype, x.device, x.shape[-1:], module.training, autocast)
        agreed = self._agreed.setdefault(module, {})
        if kind not in agreed:
            if not torch.is_grad_enabled():
                return None  # gradients can only be compared where there are some
            agreed[kind] = self._judge(module, x)
            if self._given_up:
                return None
        return rms_norm(x, module.weight, _epsilon(module, x), agreed[kind])

    def _judge(self, module: Any, x: Any) -> Any:
        """Compare both ways to compute it; the data type of the model's own."""
        try:
            dtype, objection = _compared(self._original, module, x)
        except Exception as error:
            dtype, objection = None, f"{type(error).__name__}: {error}"
        if objection is None:
            self._hooks.applied(f"{self._cls.__name__} on {x.device.type}")
        else:
            self._give_up(objection)
        return dtype

    def _give_up(self, why: str) -> None:
        self._given_up = True
        if self._inherited:
            del self._cls.forward
        else:
            self._cls.forward = self._original
        self._hooks.skipped(f"{self._cls.__name__} is left as it is: {why}")


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
