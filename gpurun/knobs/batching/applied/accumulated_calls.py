"""Stand in for the calls of torch that a training step makes, while batches are accumulated."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from gpurun.knobs.batching.applied.accumulated_steps import AccumulatedSteps
from gpurun.records.frames import drop_frame

Decide = Callable[[Any, Any], Any]
"""Given the arguments of a call: CALL to make it, anything else is what it returns instead."""
CALL = object()


class AccumulatedCalls:
    """Replaces the calls once; each asks `steps` whether it counts."""

    def __init__(self, torch: Any, steps: AccumulatedSteps, knob: str) -> None:
        self._torch = torch
        self._steps = steps
        self._knob = knob
        self._inside = getattr(torch._C, "_current_graph_task_id", lambda: -1)
        self._wrapped: set[Any] = set()
        self._stepping = 0
        self._called: Any = None

    def install(self) -> None:
        """Replace what all optimizers share."""
        from torch.nn.utils import clip_grad
        from torch.optim import lr_scheduler

        from gpurun.runtime.core.identity_map import IdentityMap
        from gpurun.runtime.core.patching import replace

        torch = self._torch
        self._called = IdentityMap()
        replace(torch.autograd, "backward", self._watch_backward)
        self._replace(torch.nn.Module, "zero_grad", self._module_clears)
        self._replace(torch.amp.grad_scaler.GradScaler, "scale", self._scales)
        clips = (
            ("clip_grad_norm_", self._clips_norm),
            ("clip_grad_value_", self._clips),
            ("clip_grads_with_norm_", self._clips),
        )
        for name, decide in clips:
            if hasattr(clip_grad, name):
                self._replace(clip_grad, name, decide)
                setattr(torch.nn.utils, name, getattr(clip_grad, name))
        base = lr_scheduler.LRScheduler
        for cls in list(vars(lr_scheduler).values()):
            if isinstance(cls, type) and issubclass(cls, base):
                self._watch_schedule(cls)
        self._replace(base, "__init__", self._schedule_begins)

    def attach(self, optimizer: Any) -> None:
        """Replace the calls of this optimizer's class."""
        cls = type(optimizer)
        if cls not in self._wrapped:
            self._wrapped.add(cls)
            self._replace(cls, "step", functools.partial(self._steps_now, cls))
            self._replace(cls, "zero_grad", functools.partial(self._clears, cls))

    # -- what each call asks -------------------------------------------------------------------

    def _steps_now(self, cls: type, args: Any, kwargs: Any) -> Any:
        steps, optimizer = self._steps, args[0]
        if type(optimizer) is not cls or not steps.of(optimizer):
            return CALL
        if any(value is not None for value in (*args[1:], *kwargs.values())):
            steps.give_up("its step is given a closure")
            return CALL
        return CALL if steps.step_counts() else None

    def _clears(self, cls: type, args: Any, kwargs: Any) -> Any:
        steps, optimizer = self._steps, args[0]
        if type(optimizer) is not cls or not steps.of(optimizer):
            return CALL
        return CALL if steps.clearing_counts() else None

    def _module_clears(self, args: Any, kwargs: Any) -> Any:
        steps = self._steps
        if not steps.active or not steps.pending:
            return CALL
        mine = steps.parameters()
        if all(id(parameter) not in mine for parameter in args[0].parameters()):
            return CALL
        return CALL if steps.clearing_counts() else None

    def _clips(self, args: Any, kwargs: Any) -> Any:
        return CALL if self._steps.clipping_counts() else None

    def _clips_norm(self, args: Any, kwargs: Any) -> Any:
        if self._steps.clipping_counts():
            return CALL
        kind = kwargs.get("norm_type", args[2] if len(args) > 2 else 2.0)
        given = kwargs["parameters"] if "parameters" in kwargs else args[0]
        whole = self._steps.every / (self._steps.pending + 1)
        return _norm(self._torch, given, float(kind)) * whole

    def _scales(self, args: Any, kwargs: Any) -> Any:
        if self._steps.active and args[0].is_enabled():
            self._steps.give_up("the script scales its gradients itself")
        return CALL

    def _schedule_begins(self, args: Any, kwargs: Any) -> Any:
        self._watch_schedule(type(args[0]))
        return CALL

    def _watch_schedule(self, cls: type) -> None:
        from gpurun.runtime.core.patching import replace

        if "step" in vars(cls) and cls not in self._wrapped:
            self._wrapped.add(cls)
            replace(cls, "step", self._watch_schedule_step)

    def _schedule_counts(self, schedule: Any, args: Any, kwargs: Any) -> bool:
        """Not right after a batch that is still gathered; one stepped once an epoch always does."""
        steps = self._steps
        if self._stepping:
            return True
        before, self._called[schedule] = self._called.get(schedule) or 0, steps.calls
        follows = steps.active and steps.pending > 0 and steps.calls - before == 1
        return bool(args or kwargs or not follows)

    # -- the wrappers --------------------------------------------------------------------------

    def _replace(self, owner: Any, name: str, decide: Decide) -> None:
        from gpurun.runtime.core.patching import replace

        ask = self._guarded(decide)

        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                found = ask(args, kwargs) if not self._steps.refused else CALL
                try:
                    if found is CALL or self._steps.refused:
                        return original(*args, **kwargs)
                except BaseException as error:
                    drop_frame(error)
                    raise
                return found

            return call

        replace(owner, name, make)

    def _failed(self, error: Exception) -> None:
        self._steps.give_up(f"{type(error).__name__}: {error}")

    def _guarded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        from gpurun.runtime.core.patching import guarded

        return guarded(f"knob {self._knob}", function, self._failed)

    def _watch_schedule_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        counts = self._guarded(self._schedule_counts)

        def step(schedule: Any, *args: Any, **kwargs: Any) -> Any:
            if counts(schedule, args, kwargs) is False:
                return None
            self._stepping += 1
            try:
                return original(schedule, *args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
            finally:
                self._stepping -= 1

        return step

    def _watch_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        steps, inside, compiling = self._steps, self._inside, self._torch.compiler.is_compiling
        start, ended = self._guarded(self._start), self._guarded(steps.backward_ended)

        def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
            ours = steps.active and not compiling() and inside() == -1
            try:
                from_here = start(tensors, grad_tensors) if ours else None
                given = grad_tensors if from_here is None else from_here
                result = original(tensors, given, *args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
            if ours:
                ended()
            return result

        return backward

    def _start(self, tensors: Any, grads: Any) -> Any:
        """The gradients from which a pass starts that begins now, None for the script's own."""
        factor = self._steps.backward_begins()
        return None if factor == 1.0 else _scaled(self._torch, tensors, grads, factor)


def _scaled(torch: Any, tensors: Any, grads: Any, factor: float) -> Any:
    """The gradients from which a backward pass starts, times `factor`."""
    several = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    given = [grads] if grads is None or isinstance(grads, torch.Tensor) else list(grads)
    given += [None] * (len(several) - len(given))
    started = []
    for tensor, grad in zip(several, given, strict=False):
        if grad is not None:
            started.append(grad * factor)
        elif isinstance(tensor, torch.Tensor) and tensor.numel() == 1:
            started.append(torch.full_like(tensor, factor))
        else:
            return grads  # torch has something to say about these
    return started


def _norm(torch: Any, parameters: Any, kind: float) -> Any:
    """The norm of all gradients, as the clipping function returns it; none is changed."""
    several: Iterable[Any] = [parameters] if isinstance(parameters, torch.Tensor) else parameters
    norms = [torch.linalg.vector_norm(p.grad, kind) for p in several if p.grad is not None]
    if not norms:
        return torch.tensor(0.0)
    return torch.linalg.vector_norm(torch.stack([n.to(norms[0].device) for n in norms]), kind)
