"""Seeing optimizers: how they are built, and the place where knobs may touch them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from gpurun.records.events import LearningRateEvent, OptimizerEvent
from gpurun.records.frames import transparent
from gpurun.runtime.core.patching import guarded, replace, switched_off
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.observe.step_clock import CLOCK


class Optimizers:
    """The optimizers of this process, numbered in the order in which they were built."""

    def __init__(self) -> None:
        self.built: list[Callable[[Optimizer], None]] = []
        self.noticed: list[Callable[[Optimizer], None]] = []
        """Our own call-backs, called after the knobs' ones."""
        self._building: set[int] = set()
        self._rates: tuple[float | None, ...] = ()

    def install(self) -> None:
        """Watch every optimizer class of torch and, through the base class, everybody's own."""
        for cls in list(vars(torch.optim).values()):
            if isinstance(cls, type) and issubclass(cls, Optimizer):
                if "__init__" in vars(cls):
                    replace(cls, "__init__", self._watch_init)
        from torch.optim import optimizer

        optimizer.register_optimizer_step_pre_hook(unless_compiling(CLOCK.step_begins))
        optimizer.register_optimizer_step_post_hook(unless_compiling(CLOCK.step_ends))
        RECORDER.on_flush(guarded("learning rates", self._hand_over_rates))

    def _watch_init(self, original: Callable[..., None]) -> Callable[..., None]:
        building = self._building
        finished = guarded("optimizer built", self._finished)

        @transparent
        def __init__(optimizer: Optimizer, *args: object, **kwargs: object) -> None:
            outermost = id(optimizer) not in building
            building.add(id(optimizer))
            try:
                original(optimizer, *args, **kwargs)
            finally:
                if outermost:
                    building.discard(id(optimizer))
            if outermost:
                finished(optimizer)

        return __init__

    def _finished(self, optimizer: Optimizer) -> None:
        if optimizer in CLOCK.optimizers:
            return
        number = CLOCK.number(optimizer)
        for callback in self.built:
            callback(optimizer)
        event = guarded("optimizer event", _optimizer_event)(number, optimizer)
        if event is not None:
            RECORDER.event(event)
        for callback in self.noticed:
            callback(optimizer)

    def _hand_over_rates(self) -> None:
        """Write the learning rates if they have changed. Waits for no device."""
        rates = tuple(_rate(optimizer) for optimizer in CLOCK.optimizers)
        if rates != self._rates:
            self._rates = rates
            RECORDER.event(LearningRateEvent(time.perf_counter_ns(), rates))


def _rate(optimizer: Optimizer) -> float | None:
    groups = optimizer.param_groups
    rate = groups[0].get("lr") if groups else None
    return float(rate) if isinstance(rate, (int, float)) else None


def unless_compiling(hook: Callable[..., None]) -> Callable[..., None]:
    """The hook, guarded; what torch.compile traces sees nothing of it."""
    compiling = torch.compiler.is_dynamo_compiling

    def call(optimizer: Optimizer, args: object, kwargs: object) -> None:
        nonlocal hook
        if compiling():
            return
        try:
            hook(optimizer)
        except Exception as error:
            hook = switched_off(hook.__name__, error)

    return call


def plain(value: object) -> Any:
    """A hyper-parameter as a JSON value (tensors of one element become numbers)."""
    if isinstance(value, (bool, int, float, str)) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    if hasattr(value, "item") and getattr(value, "numel", lambda: 0)() == 1:
        return value.item()
    return repr(value)[:80]


def hyperparameters(group: dict[str, Any]) -> dict[str, Any]:
    """The settings of a parameter group, without its parameters."""
    return {k: plain(v) for k, v in group.items() if k not in ("params", "param_names")}


def _optimizer_event(number: int, optimizer: Optimizer) -> OptimizerEvent:
    groups = optimizer.param_groups
    first = next((p for g in groups for p in g["params"]), None)
    return OptimizerEvent(
        optimizer=number,
        class_name=type(optimizer).__name__,
        module=type(optimizer).__module__,
        parameters=sum(len(g["params"]) for g in groups),
        groups=len(groups),
        hyperparameters=hyperparameters(groups[0]) if groups else {},
        device="cpu" if first is None else str(first.device),
    )


OPTIMIZERS = Optimizers()
"""The optimizers of this process."""
