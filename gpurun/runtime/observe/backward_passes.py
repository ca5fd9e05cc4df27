"""Seeing backward passes, whoever starts them (`Tensor.backward` ends in the same function)."""

from __future__ import annotations

import sys
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeGuard

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from gpurun.records.frames import drop_frame, transparent
from gpurun.records.messages.traits import DOUBLE_BACKWARD
from gpurun.runtime.core.patching import guarded, replace, switched_off
from gpurun.runtime.observe.script_traits import TRAITS
from gpurun.runtime.observe.step_clock import CLOCK

ARGUMENTS = ("grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")
"""Parameters of `torch.autograd.backward` after the tensors."""

Tensors: TypeAlias = Tensor | Sequence[Tensor]
"""The tensors that `torch.autograd.backward` and `grad` differentiate."""

now = time.perf_counter_ns


class Backward:
    """Reports backward passes to the clock; one inside another (checkpointing) is part of it."""

    def __init__(self) -> None:
        self.around: list[tuple[Callable[[Tensor], Tensor | None], Callable[[], None]]] = []
        """Call-backs of knobs before and after the script's passes (`Hooks.around_backward`)."""
        self._inside: Callable[[], int] = lambda: -1
        self._scaled: tuple[weakref.ref[Tensor], Tensor] | None = None
        self._loss = guarded("loss", self._differentiated)
        self._note_twice = guarded("double backward", TRAITS.note_call)
        self._note_error = guarded("out of memory", TRAITS.note_error)

    def install(self) -> None:
        """Watch `torch.autograd.backward`, and `grad` for scripts that step parameters by hand."""
        self._inside = getattr(torch._C, "_current_graph_task_id", self._inside)
        replace(torch.autograd, "backward", self._watch_backward)
        replace(torch.autograd, "grad", self._watch_grad)
        replace(GradScaler, "scale", self._watch_scale)

    def _watch_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        report: Callable[..., None] = CLOCK.backward
        inside, around, loss_of = self._inside, self.around, self._loss
        compiling = torch.compiler.is_dynamo_compiling

        def backward(tensors: Tensors, *args: object, **kwargs: object) -> Any:
            nonlocal report
            if compiling():
                return original(tensors, *args, **kwargs)
            if kwargs.get("create_graph") or (len(args) > 2 and args[2]):
                self._note_twice(DOUBLE_BACKWARD, sys._getframe(1))
            began = now()
            loss: Tensors = tensors
            ended = None
            if around and inside() == -1 and _is_one_loss(tensors, args, kwargs):
                loss, ended = self._begin(tensors)
            try:
                result = original(loss, *args, **kwargs)
            except BaseException as error:
                self._note_error(error, sys._getframe(1))
                self._end(ended)
                drop_frame(error)
                raise
            if ended is not None:
                self._end(ended)
            elapsed_ns = now() - began
            try:
                if inside() == -1:
                    report(elapsed_ns, loss_of(tensors) if CLOCK.looking else None)
            except Exception as error:
                report = switched_off("backward", error)
            return result

        return backward

    def _begin(self, loss: Tensor) -> tuple[Tensor, Sequence[Callable[[], None]]]:
        """The loss to differentiate, and the call-backs for when that is done."""
        ended = []
        for begins, then in self.around:
            instead = begins(loss)
            if instead is not None:
                loss = instead
                ended.append(then)
        return loss, ended

    def _end(self, ended: Sequence[Callable[[], None]] | None) -> None:
        for callback in ended or ():
            callback()

    def _watch_grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        report = guarded("gradient", self._report)
        inside, compiling = self._inside, torch.compiler.is_dynamo_compiling

        def grad(outputs: Tensors, *args: object, **kwargs: object) -> Any:
            if compiling():
                return original(outputs, *args, **kwargs)
            twice = kwargs.get("create_graph") or (len(args) > 3 and args[3])
            if twice:
                self._note_twice(DOUBLE_BACKWARD, sys._getframe(1))
            began = now()
            try:
                result = original(outputs, *args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
            if not len(CLOCK.optimizers) and not twice and inside() == -1:
                report(now() - began, outputs)
            return result

        return grad

    def _watch_scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        note = guarded("loss scale", self._note_scaled)

        @transparent
        def scale(scaler: GradScaler, outputs: object) -> Any:
            result = original(scaler, outputs)
            note(outputs, result)
            return result

        return scale

    def _note_scaled(self, loss: object, scaled: Tensor) -> None:
        if isinstance(loss, Tensor):
            self._scaled = (weakref.ref(scaled), loss.detach())

    def _report(self, elapsed_ns: int, tensors: Tensors) -> None:
        CLOCK.backward(elapsed_ns, self._loss(tensors) if CLOCK.looking else None)

    def _differentiated(self, tensors: Tensors) -> Tensor | None:
        """The scalar that is differentiated, before a gradient scaler multiplied it."""
        first = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
        if not isinstance(first, Tensor) or first.numel() != 1:
            return None
        scaled, self._scaled = self._scaled, None
        if scaled is not None and scaled[0]() is first:
            return scaled[1]
        # a subclass of Tensor may refuse what the clock asks of a loss: better here than there
        return first if type(first) is Tensor else first.detach()


def _is_one_loss(
    tensors: Tensors, args: tuple[object, ...], kwargs: dict[str, object]
) -> TypeGuard[Tensor]:
    """True if a scalar is differentiated once, by all that it depends on."""
    if not isinstance(tensors, Tensor) or tensors.numel() != 1:
        return False
    given = {**dict(zip(ARGUMENTS, args, strict=False)), **kwargs}
    return all(x is None or x is False for name, x in given.items() if name != "retain_graph")


BACKWARD = Backward()
"""The watch over backward passes of this process."""
