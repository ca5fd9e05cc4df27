"""Seeing backward passes, whoever starts them (`Tensor.backward` ends in the same function)."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from gpurun.records.frames import drop_frame
from gpurun.runtime.core.patching import guarded, replace, switched_off
from gpurun.runtime.observe.step_clock import CLOCK

ARGUMENTS = ("grad_tensors", "retain_graph", "create_graph", "grad_variables", "inputs")
"""Parameters of `torch.autograd.backward` after the tensors."""

now = time.perf_counter_ns


class Backward:
    """Tells the clock of backward passes; those inside another (checkpointing) are part of it."""

    def __init__(self) -> None:
        self.around: list[tuple[Callable[[Any], Any], Callable[[], None]]] = []
        """What knobs do before and after the passes of the script (`Hooks.around_backward`)."""
        self._inside: Callable[[], int] = lambda: -1
        self._scaled: tuple[Any, Any] | None = None
        self._loss = guarded("loss", self._differentiated)

    def install(self, torch: Any) -> None:
        """Watch `torch.autograd.backward`, and `grad` for scripts that step parameters by hand."""
        self._inside = getattr(torch._C, "_current_graph_task_id", self._inside)
        self._tensor = torch.Tensor
        self._compiling = torch.compiler.is_dynamo_compiling
        replace(torch.autograd, "backward", self._watch_backward)
        replace(torch.autograd, "grad", self._watch_grad)
        replace(torch.amp.grad_scaler.GradScaler, "scale", self._watch_scale)

    def _watch_backward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        tell: Callable[..., None] = CLOCK.backward
        inside, compiling, around, loss_of = self._inside, self._compiling, self.around, self._loss

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal tell
            if compiling():
                return original(tensors, *args, **kwargs)
            began = now()
            loss, ended = tensors, None
            if around and inside() == -1 and self._is_one_loss(tensors, args, kwargs):
                loss, ended = self._begin(tensors)
            try:
                result = original(loss, *args, **kwargs)
            except BaseException as error:
                self._end(ended)
                drop_frame(error)
                raise
            if ended is not None:
                self._end(ended)
            elapsed_ns = now() - began
            try:
                if inside() == -1:
                    tell(elapsed_ns, loss_of(tensors) if CLOCK.looking else None)
            except Exception as error:
                tell = switched_off("backward", error)
            return result

        return backward

    def _is_one_loss(self, tensors: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a scalar is differentiated once, by all that it depends on."""
        if not isinstance(tensors, self._tensor) or tensors.numel() != 1:
            return False
        given = {**dict(zip(ARGUMENTS, args, strict=False)), **kwargs}
        return all(x is None or x is False for name, x in given.items() if name != "retain_graph")

    def _begin(self, loss: Any) -> tuple[Any, Sequence[Callable[[], None]]]:
        """The loss to differentiate, and whom to tell when that is done."""
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
        tell = guarded("gradient", self._tell)
        inside, compiling = self._inside, self._compiling

        def grad(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if compiling():
                return original(outputs, *args, **kwargs)
            began = now()
            try:
                result = original(outputs, *args, **kwargs)
            except BaseException as error:
                drop_frame(error)
                raise
            if not len(CLOCK.optimizers) and not kwargs.get("create_graph") and inside() == -1:
                tell(now() - began, outputs)
            return result

        return grad

    def _watch_scale(self, original: Callable[..., Any]) -> Callable[..., Any]:
        note = guarded("loss scale", self._note_scaled)

        def scale(scaler: Any, outputs: Any) -> Any:
            try:
                result = original(scaler, outputs)
            except BaseException as error:
                drop_frame(error)
                raise
            note(outputs, result)
            return result

        return scale

    def _note_scaled(self, loss: Any, scaled: Any) -> None:
        if isinstance(loss, self._tensor):
            self._scaled = (weakref.ref(scaled), loss.detach())

    def _tell(self, elapsed_ns: int, tensors: Any) -> None:
        CLOCK.backward(elapsed_ns, self._loss(tensors) if CLOCK.looking else None)

    def _differentiated(self, tensors: Any) -> Any:
        """The scalar that is differentiated, before a gradient scaler multiplied it."""
        first = tensors[0] if isinstance(tensors, (list, tuple)) and tensors else tensors
        if not isinstance(first, self._tensor) or first.numel() != 1:
            return None
        scaled, self._scaled = self._scaled, None
        if scaled is not None and scaled[0]() is first:
            return scaled[1]
        # a subclass of Tensor may refuse what the clock asks of a loss: better here than there
        return first if type(first) is self._tensor else first.detach()


BACKWARD = Backward()
"""The watch over backward passes of this process."""
