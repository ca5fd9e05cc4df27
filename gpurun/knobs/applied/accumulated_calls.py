"""Stand in for the calls of torch that a training step makes, while batches are accumulated."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, Concatenate, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.nn.utils import clip_grad
from torch.optim import Optimizer, lr_scheduler

from gpurun.identity_map import IdentityMap
from gpurun.knobs.api import Hooks
from gpurun.knobs.applied.accumulated_steps import AccumulatedSteps
from gpurun.knobs.applied.replaced_calls import Args, Kwargs
from gpurun.records.frames import transparent

P = ParamSpec("P")
R = TypeVar("R")

Decide = Callable[[Args, Kwargs], object]
"""Given the arguments of a call: CALL to make it, anything else is what it returns instead."""
CALL = object()
Schedule = lr_scheduler.LRScheduler


class AccumulatedCalls:
    """Replaces the calls once; each asks `steps` whether it counts."""

    def __init__(self, steps: AccumulatedSteps, hooks: Hooks) -> None:
        self._steps = steps
        self._hooks = hooks
        self._wrapped: set[type] = set()
        self._stepping = 0
        self._called: IdentityMap[int] = IdentityMap()

    def install(self) -> None:
        """Replace what all optimizers share."""
        self._hooks.around_backward(self._divided, self._steps.backward_ended)
        self._ask_before(torch.nn.Module, "zero_grad", self._module_clears)
        self._ask_before(torch.amp.grad_scaler.GradScaler, "scale", self._scales)
        clips: tuple[tuple[str, Decide], ...] = (
            ("clip_grad_norm_", self._clips_norm),
            ("clip_grad_value_", self._clips),
            ("clip_grads_with_norm_", self._clips),
        )
        for name, decide in clips:
            if hasattr(clip_grad, name):
                self._ask_before(clip_grad, name, decide)
                setattr(torch.nn.utils, name, getattr(clip_grad, name))
        for cls in list(vars(lr_scheduler).values()):
            if isinstance(cls, type) and issubclass(cls, Schedule):
                self._watch_schedule(cls)
        self._ask_before(Schedule, "__init__", self._schedule_begins)

    def attach(self, optimizer: Optimizer) -> None:
        """Replace the calls of this optimizer's class."""
        cls = type(optimizer)
        if cls not in self._wrapped:
            self._wrapped.add(cls)
            self._ask_before(cls, "step", functools.partial(self._steps_now, cls))
            self._ask_before(cls, "zero_grad", functools.partial(self._clears, cls))

    def _divided(self, loss: Tensor) -> Tensor | None:
        """The part of a loss in the mean of its step; None leaves the script's own."""
        factor = self._steps.backward_begins()
        return None if factor == 1.0 else loss * factor

    # -- what each call asks -------------------------------------------------------------------

    def _steps_now(self, cls: type, args: Args, kwargs: Kwargs) -> object:
        steps, optimizer = self._steps, args[0]
        if type(optimizer) is not cls or not steps.of(optimizer):
            return CALL
        if any(value is not None for value in (*args[1:], *kwargs.values())):
            steps.give_up("its step is given a closure")
            return CALL
        return CALL if steps.step_counts() else None

    def _clears(self, cls: type, args: Args, kwargs: Kwargs) -> object:
        steps, optimizer = self._steps, args[0]
        if type(optimizer) is not cls or not steps.of(optimizer):
            return CALL
        return CALL if steps.clearing_counts() else None

    def _module_clears(self, args: Args, kwargs: Kwargs) -> object:
        steps = self._steps
        if not steps.pending or not steps.steps_any_of(args[0].parameters()):
            return CALL
        return CALL if steps.clearing_counts() else None

    def _clips(self, args: Args, kwargs: Kwargs) -> object:
        return CALL if self._steps.clipping_counts() else None

    def _clips_norm(self, args: Args, kwargs: Kwargs) -> object:
        if self._steps.clipping_counts():
            return CALL
        kind = kwargs["norm_type"] if "norm_type" in kwargs else (*args, 2.0, 2.0)[2]
        given = kwargs["parameters"] if "parameters" in kwargs else args[0]
        whole = self._steps.every / (self._steps.pending + 1)
        return _norm(given, float(kind)) * whole

    def _scales(self, args: Args, kwargs: Kwargs) -> object:
        if self._steps.active and args[0].is_enabled():
            self._steps.give_up("the script scales its gradients itself")
        return CALL

    def _schedule_begins(self, args: Args, kwargs: Kwargs) -> object:
        self._watch_schedule(type(args[0]))
        return CALL

    def _watch_schedule(self, cls: type[Schedule]) -> None:
        if "step" in vars(cls) and cls not in self._wrapped:
            self._wrapped.add(cls)
            _replace(cls, "step", self._watch_schedule_step)

    def _schedule_counts(self, schedule: Schedule, given: bool) -> bool:
        """Not right after a batch that is still gathered; one stepped once an epoch always does."""
        steps = self._steps
        if self._stepping:
            return True
        before, self._called[schedule] = self._called.get(schedule) or 0, steps.calls
        follows = steps.active and steps.pending > 0 and steps.calls - before == 1
        return given or not follows

    # -- the wrappers --------------------------------------------------------------------------

    def _ask_before(self, owner: type | ModuleType, name: str, decide: Decide) -> None:
        ask, steps = self._hooks.guarded(decide, self._failed), self._steps

        def make(original: Callable[..., object]) -> Callable[..., object]:
            @transparent
            def call(*args: Any, **kwargs: Any) -> object:
                found = ask(args, kwargs) if not steps.refused else CALL
                return original(*args, **kwargs) if found is CALL or steps.refused else found

            return call

        _replace(owner, name, make)

    def _failed(self, error: Exception) -> None:
        self._steps.give_up(f"{type(error).__name__}: {error}")

    def _watch_schedule_step(
        self, original: Callable[Concatenate[Schedule, P], None]
    ) -> Callable[Concatenate[Schedule, P], None]:
        counts = self._hooks.guarded(self._schedule_counts, self._failed)

        @transparent
        def step(schedule: Schedule, /, *args: P.args, **kwargs: P.kwargs) -> None:
            if counts(schedule, bool(args or kwargs)) is False:
                return
            self._stepping += 1
            try:
                original(schedule, *args, **kwargs)
            finally:
                self._stepping -= 1

        return step


def _replace(owner: object, name: str, make: Callable[[Callable[P, R]], Callable[P, R]]) -> None:
    """Put `make(original)` in the place of an attribute."""
    original = getattr(owner, name)
    setattr(owner, name, functools.update_wrapper(make(original), original))


def _norm(parameters: Tensor | Iterable[Tensor], kind: float) -> Tensor:
    """The norm of all gradients, as the clipping function returns it; none is changed."""
    several = [parameters] if isinstance(parameters, Tensor) else parameters
    norms = [torch.linalg.vector_norm(p.grad, kind) for p in several if p.grad is not None]
    if not norms:
        return torch.tensor(0.0)
    whole: Tensor = torch.linalg.vector_norm(
        torch.stack([n.to(norms[0].device) for n in norms]), kind
    )
    return whole
