"""Scale the loss so that gradients survive in float16, without the script's knowledge.

The work of `torch.amp.GradScaler`, for scripts that do not call it. The loss is scaled as
`backward` begins, and the gradients are unscaled when it returns. So accumulation, clipping and
logging work as before. A step whose gradients overflowed is passed over.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.nn import Module
from torch.optim import Optimizer

from gpurun.identity_map import IdentityMap
from gpurun.knobs.api import Hooks
from gpurun.knobs.applied.autograd_state import graph_leaves
from gpurun.knobs.applied.replaced_calls import Args, Kwargs, intercepted
from gpurun.knobs.callers import is_ours

INITIAL = 2.0**12
"""GradScaler begins with 2**16, which overflows in the first steps of many models. gpurun compares
these steps with the script's own, and a skipped step would be a difference."""
GROWTH_STEPS = 2000
"""The scale is doubled after so many steps without an overflow, as GradScaler does."""

Group = tuple[Optimizer | None, list[Tensor]]
"""An optimizer (None: no optimizer) and leaves whose gradients it steps with."""


class LossScale:
    """One power of two, by which each loss is multiplied and each gradient divided.

    `on` tells whether the forward runs in float16; `refuse` ends that for good, with a reason. The
    scale lives in this object alone: no state dict, pickle or copy of an optimizer knows of it.
    """

    def __init__(self, hooks: Hooks, on: Callable[[], bool], refuse: Callable[[str], None]) -> None:
        self._hooks = hooks
        self._on = on
        self._refuse = refuse
        self._scale = INITIAL
        self._good_steps = 0
        self._flags: IdentityMap[dict[torch.device, Tensor]] = IdentityMap()
        """For each optimizer, by device, a number there that is not 0 after an overflow."""
        self._hidden: list[tuple[Tensor, Tensor | None]] = []
        self._groups: list[Group] = []
        watch(self._read)
        hooks.after_optimizer(self._built)
        hooks.on_root(self._root_found)
        hooks.around_backward(self._begin, self._end)

    def _root_found(self, module: torch.nn.Module) -> None:
        sharded = self._hooks.has_trait("process_group") and not self._hooks.has_trait("ddp")
        if sharded:
            self._refuse("ranks without DistributedDataParallel may disagree on an overflow")
        elif hooked_modules(module.modules()):
            self._read("backward hooks of modules")

    # -- the backward pass ---------------------------------------------------------------------

    def _begin(self, loss: Tensor) -> Tensor | None:
        """The scaled loss; gradients that are there already take part in the accumulation."""
        if not self._on() or torch.is_inference_mode_enabled() or not loss.requires_grad:
            return None
        if not len(self._flags):
            self._refuse("no optimizer of torch steps the parameters")
            return None
        with torch.enable_grad():
            scaled = (loss.float() if loss.itemsize < 4 else loss) * self._scale
        leaves = graph_leaves([scaled])
        if hooked_tensors(leaves):
            self._read("register_hook")
            return None
        self._groups = self._by_optimizer(leaves)
        with torch.no_grad():
            for _, members in self._groups:
                for gradients in _gradients(members):
                    torch._foreach_mul_(gradients, self._scale)
        return scaled

    def _end(self) -> None:
        """Make the gradients true ones, and note for whom one of them is not finite."""
        groups, self._groups = self._groups, []
        with torch.no_grad():
            for optimizer, members in groups:
                flags = self._flags.get(optimizer)
                flags = {} if flags is None else flags
                for gradients in _gradients(members):
                    device = gradients[0].device
                    if device not in flags:
                        flags[device] = torch.zeros((), device=device)
                    back = torch.full((), 1.0 / self._scale, device=device)
                    torch._amp_foreach_non_finite_check_and_unscale_(gradients, flags[device], back)

    def _by_optimizer(self, leaves: list[Tensor]) -> list[Group]:
        """Each tensor once, also parameters that a checkpoint hides from the graph."""
        seen: set[int] = set()
        groups: list[Group] = []
        for optimizer, members in (*((o, _parameters(o)) for o in self._flags), (None, leaves)):
            fresh = [tensor for tensor in members if id(tensor) not in seen]
            seen.update(map(id, fresh))
            groups.append((optimizer, fresh))
        return groups

    def _read(self, method: str) -> None:
        self._refuse(f"gradients are read while backward runs, scaled ({method})")

    # -- the step ------------------------------------------------------------------------------

    def _built(self, optimizer: Optimizer) -> None:
        name = type(optimizer).__name__
        if not getattr(type(optimizer).step, "__module__", "").startswith("torch.optim."):
            self._refuse(f"{name} has a step of its own, which may need every gradient")
            return
        self._flags[optimizer] = {}
        guarded = self._hooks.guarded
        optimizer.register_step_pre_hook(guarded(self._step_begins, self._failed))
        optimizer.register_step_post_hook(guarded(self._step_ended, self._failed))

    def _failed(self, error: Exception) -> None:
        self._refuse(f"the loss scale failed: {type(error).__name__}")

    def _step_begins(self, optimizer: Optimizer, args: Args, kwargs: Kwargs) -> None:
        """After an overflow hide the gradients: optimizers of torch pass over such parameters."""
        flags = self._flags.get(optimizer)
        if self._on() and (len(args) > 1 or kwargs.get("closure") is not None):
            self._refuse("the optimizer is given a closure")
        if not flags:
            return
        overflow = any(bool(flag) for flag in flags.values())
        flags.clear()
        if overflow:
            self._scale, self._good_steps = max(1.0, self._scale / 2), 0
            self._hidden = [(p, p.grad) for p in _parameters(optimizer)]
            for parameter, _ in self._hidden:
                parameter.grad = None
            return
        self._good_steps += 1
        if self._good_steps == GROWTH_STEPS:
            self._scale, self._good_steps = self._scale * 2, 0

    def _step_ended(self, optimizer: Optimizer, args: Args, kwargs: Kwargs) -> None:
        """Bring the hidden gradients back, as the script may look at them."""
        for parameter, gradient in self._hidden:
            parameter.grad = gradient
        self._hidden = []


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _gradients(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Their gradients as dense real tensors, by device and dtype."""
    groups: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for tensor in tensors:
        gradient = tensor.grad
        if gradient is None:
            continue
        if gradient.is_sparse:
            gradient = gradient._values()
        if gradient.is_complex():
            gradient = torch.view_as_real(gradient)
        if gradient.numel():
            groups.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    return list(groups.values())


OF_TENSORS = ("register_hook", "retain_grad", "register_post_accumulate_grad_hook")
OF_MODULES = (
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
    "register_backward_hook",
)


def watch(seen: Callable[[str], None]) -> None:
    """Call `seen(method)` when code outside of torch registers such a hook from now on."""
    for owner, names in ((torch.Tensor, OF_TENSORS), (torch.nn.Module, OF_MODULES)):
        for name in names:
            setattr(owner, name, intercepted(getattr(owner, name), _telling(name, seen)))


def hooked_modules(modules: Iterable[Module]) -> bool:
    """True if a module carries a backward hook already."""
    return any(m._backward_hooks or m._backward_pre_hooks for m in modules)


def hooked_tensors(tensors: Iterable[Tensor]) -> bool:
    """True if a leaf carries a hook already."""
    return any(t._backward_hooks or t._post_accumulate_grad_hooks for t in tensors)


def _telling(
    method: str, seen: Callable[[str], None]
) -> Callable[[Tensor | Module, Args, Kwargs], None]:
    def ask(target: Tensor | Module, args: Args, kwargs: Kwargs) -> None:
        frame = sys._getframe(2)  # who calls the method that asks
        module = str(frame.f_globals.get("__name__"))
        if module.partition(".")[0] != "torch" and not is_ours(frame):
            seen(method)

    return ask
