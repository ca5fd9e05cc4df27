"""Run the RMS norms of a model in one kernel, each after a proof on the script's own input."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Module

from gpurun.knobs.api import Hooks
from gpurun.knobs.applied.replaced_calls import (
    Args,
    Forward,
    Kwargs,
    ReplacedForwards,
    cannot_choose,
)

from .rms_norm import rms_norm

EPSILONS = ("eps", "variance_epsilon", "epsilon")
"""Names under which people keep what is added to the mean square."""
TOLERANCE, LOW_TOLERANCE = 1e-4, 3e-2
"""Largest deviation from the model's own result, as a part of it: float32, half precision."""

Kind = tuple[object, ...]
"""A kind of input: data type, device, features, training or not, autocast or not."""
Agreed = dict[Kind, torch.dtype]


class FusedNorms:
    """The norms that run fused. The entry of each is what it was found to agree on: by kind of
    input, the data type that its own forward returns.
    """

    def __init__(self, hooks: Hooks, named: str) -> None:
        self._hooks = hooks
        self._named = named
        self._called = False
        self._forwards: ReplacedForwards[Agreed] = ReplacedForwards(self._run)

    def root_found(self, root: Module) -> None:
        """Choose the norms of a new root."""
        norms = [m for m in root.modules() if self._named in type(m).__name__]
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

    def _run(
        self, module: Module, agreed: Agreed, original: Forward, args: Args, more: Kwargs
    ) -> object:
        self._called = True
        x = args[0] if len(args) == 1 and not more else None
        if type(x) is not Tensor or torch.jit.is_tracing():
            return original(module, *args, **more)
        autocast = torch.is_autocast_enabled(x.device.type)
        kind = (x.dtype, x.device, x.shape[-1:], module.training, autocast)
        if kind not in agreed:
            # gradients can only be compared where there are some
            if not torch.is_grad_enabled() or not self._agrees(module, agreed, kind, original, x):
                return original(module, x)
        return rms_norm(x, module.weight, _epsilon(module, x), agreed[kind])

    def _agrees(
        self, module: Module, agreed: Agreed, kind: Kind, original: Forward, x: Tensor
    ) -> bool:
        """Whether both ways compute the same; if not, the module is left to its own forward."""
        name = type(module).__name__
        try:
            dtype, objection = _compared(original, module, x)
        except Exception as error:
            dtype, objection = None, f"{type(error).__name__}: {error}"
        if objection is None and dtype is not None:
            agreed[kind] = dtype
            self._hooks.applied(f"{name} on {x.device.type}")
            return True
        self._forwards.leave(module)
        self._hooks.skipped(f"{name} is left as it is: {objection}")
        return False


def _compared(
    original: Forward, module: Module, x: Tensor
) -> tuple[torch.dtype | None, str | None]:
    """The data type of `original`'s result, and what speaks against computing it our way."""
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


def _epsilon(module: Module, x: Tensor) -> float:
    for name in EPSILONS:
        value = getattr(module, name, None)
        if value is not None:
            return float(value)
    return float(torch.finfo(x.dtype).eps)  # torch's own default
