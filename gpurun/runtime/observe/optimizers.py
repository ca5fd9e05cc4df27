"""Seeing optimizers: how they are built, and the two places where knobs may touch them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import Optimizer

from gpurun.knobs.api import OptimizerCall
from gpurun.records.events import OptimizerEvent
from gpurun.records.frames import drop_frame
from gpurun.runtime.core.knob_outcomes import OUTCOMES
from gpurun.runtime.core.patching import Settle, build_edited, guarded, replace, switched_off
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.observe.step_clock import CLOCK


class Optimizers:
    """The optimizers of this process, numbered in the order in which they were built."""

    def __init__(self) -> None:
        self.edits: list[Callable[[OptimizerCall], None]] = []
        self.built: list[Callable[[Optimizer], None]] = []
        self.noticed: list[Callable[[Optimizer], None]] = []
        """Our own call-backs, called after the knobs' ones."""
        self._building: set[int] = set()

    def install(self) -> None:
        """Watch every optimizer class of torch and, through the base class, everybody's own."""
        for cls in list(vars(torch.optim).values()):
            if isinstance(cls, type) and issubclass(cls, Optimizer):
                if "__init__" in vars(cls):
                    replace(cls, "__init__", self._watch_init)
        from torch.optim import optimizer

        optimizer.register_optimizer_step_pre_hook(_unless_compiling(CLOCK.step_begins))
        optimizer.register_optimizer_step_post_hook(_unless_compiling(CLOCK.step_ends))

    def _watch_init(self, original: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(original)
        optimizers = self
        finished = guarded("optimizer built", self._finished)
        edited = guarded("optimizer edits", self._edited)

        def __init__(optimizer: Optimizer, *args: object, **kwargs: object) -> None:
            outermost = id(optimizer) not in optimizers._building
            call = None
            if outermost and optimizers.edits:
                call = edited(signature, optimizer, args, kwargs)
            optimizers._building.add(id(optimizer))
            try:
                if call is None:
                    original(optimizer, *args, **kwargs)
                else:
                    build_edited("edited optimizer", original, optimizer, *call)
            except BaseException as error:
                drop_frame(error)
                raise
            finally:
                if outermost:
                    optimizers._building.discard(id(optimizer))
            if outermost:
                finished(optimizer)

        return __init__

    def _edited(
        self,
        signature: inspect.Signature,
        optimizer: Optimizer,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> tuple[dict[str, Any], dict[str, Any], Settle] | None:
        """The script's arguments by name, the edited ones, and the call-back for the outcome."""
        try:
            arguments = dict(signature.bind(optimizer, *args, **kwargs).arguments)
        except TypeError:
            return None  # the script's own error: let torch raise it
        arguments.pop(next(iter(signature.parameters)), None)
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL:
                return None
            if parameter.kind is parameter.VAR_KEYWORD:
                arguments.update(arguments.pop(parameter.name, {}))
        if isinstance(arguments.get("params"), Iterator):
            arguments["params"] = list(arguments["params"])  # it can be read only once
        call = OptimizerCall(cls=type(optimizer), arguments=dict(arguments))
        with OUTCOMES.held() as held:
            for edit in self.edits:
                edit(call)
        return arguments, call.arguments, functools.partial(OUTCOMES.settle, held)

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


def _unless_compiling(hook: Callable[..., None]) -> Callable[..., None]:
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
    return OptimizerEvent(
        optimizer=number,
        class_name=type(optimizer).__name__,
        module=type(optimizer).__module__,
        parameters=sum(len(g["params"]) for g in groups),
        groups=len(groups),
        hyperparameters=hyperparameters(groups[0]) if groups else {},
    )


OPTIMIZERS = Optimizers()
"""The optimizers of this process."""
