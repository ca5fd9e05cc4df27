"""Counts the floating-point operations of one early step, once, by torch's own formulas.

`torch.utils.flop_counter` has a formula for each matrix product, convolution and attention. Its
`FlopCounterMode` follows the module tree too, by hooks on every module and tensor; here only its
formulas are used. The mode is on inside root calls and backward passes alone: one that lay across
the script's own code could end in a `with` of the script's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import checkpoint, flop_counter
from torch.utils._python_dispatch import TorchDispatchMode

from gpurun.records.events import FlopsEvent
from gpurun.records.frames import drop_frame
from gpurun.records.messages.traits import RECOMPUTES
from gpurun.runtime.core.patching import guarded
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.observe.backward_passes import BACKWARD
from gpurun.runtime.observe.root_modules import ROOTS
from gpurun.runtime.observe.script_traits import TRAITS
from gpurun.runtime.observe.step_clock import CLOCK

COUNTED_STEP = 3
"""Roots are known by then, and steps as early as this are warm-up."""
LATEST_STEP = 64
"""A script that evaluates first has a better clock later, whose step counts; or it has none."""
NAME = "FLOPs of a step"
CHEAP_LIBRARIES = (
    "aten",
    "prim",
    "prims",
    "c10d",
    "c10d_functional",
    "_c10d_functional",
    "profiler",
)
"""Of operators that are no matrix products, as far as they have no formula. Others may be any."""
UNCOUNTED = (
    "mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn", "_transformer_encoder_layer_fwd",
    "_native_multi_head_attention", "_addmm_activation", "_int_mm", "mkldnn_linear",
    "_grouped_mm", "_scaled_grouped_mm",
)  # fmt: skip
"""Torch's own operators that multiply matrices and have no formula."""
HIDE_OPERATORS = ("compile", "data_parallel")
"""Traits of scripts whose operators a mode of this thread does not see, or would run otherwise."""


class StepFlops:
    """Counts the operations of one step, and writes them down."""

    def __init__(self, compiles: bool) -> None:
        self._compiles = compiles
        """True if a knob compiles the roots."""
        self._mode: _Counting | None = None
        self._passes = 0
        self._backward = (self._backward_begins, self._backward_ends)
        self._listener = guarded(NAME, self._stepped, failed=lambda _: self._leave())

    def install(self) -> None:
        """Wait for the step before the one that is counted."""
        CLOCK.listeners.append(self._listener)

    def _stepped(self, count: int) -> None:
        if self._mode is not None:
            self._write(self._mode)
            self._leave()
        if count == COUNTED_STEP - 1:
            self._begin()
        elif count > LATEST_STEP or (count >= COUNTED_STEP and CLOCK.kind == "optimizer"):
            CLOCK.listeners = [x for x in CLOCK.listeners if x is not self._listener]

    def _begin(self) -> None:
        hidden = self._hidden()
        if hidden is not None:
            RECORDER.event(FlopsEvent(step_clock=CLOCK.kind, flops=None, detail=hidden))
            return
        counting = _SkippedByDynamo if "torch._dynamo" in sys.modules else _Counting
        self._mode, self._passes = counting(), CLOCK.backwards
        mode = self._mode
        ROOTS.around.add(NAME, lambda: mode, None, lambda _: self._leave())
        BACKWARD.around.append(self._backward)

    def _hidden(self) -> str | None:
        """Why the operators cannot be counted; None if they can."""
        roots = ROOTS.modules()
        if not roots:
            return "no module is called"
        if self._compiles or any(map(_compiled, roots)):
            return "the model is compiled"
        if _dynamo_has_compiled():
            return "a part of the step is compiled"
        for trait in HIDE_OPERATORS:
            if trait in TRAITS.seen:
                return f"the script uses {trait}: {TRAITS.seen[trait]}"
        if any(type(p) not in (nn.Parameter, Tensor) for m in roots for p in m.parameters()):
            return "parameters are of a class of their own"
        return None

    def _backward_begins(self, loss: Tensor) -> Tensor:
        if self._mode is not None:
            self._mode.backward = True
            self._mode.passes += 1
            self._mode.__enter__()
        return loss

    def _backward_ends(self) -> None:
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
            self._mode.backward = False

    def _write(self, mode: _Counting) -> None:
        passes = CLOCK.backwards - self._passes
        detail = mode.error
        if detail is None and mode.passes != passes:
            detail = f"{mode.passes} of {passes} backward passes could be counted"
        if detail is None and not mode.flops:
            detail = "no matrix product, convolution or attention was seen"
        flops = mode.flops if detail is None else None
        RECORDER.event(FlopsEvent(step_clock=CLOCK.kind, flops=flops, detail=detail or ""))

    def _leave(self) -> None:
        """Leave nothing behind."""
        self._mode = None
        ROOTS.around.remove(NAME)
        if self._backward in BACKWARD.around:
            BACKWARD.around.remove(self._backward)


class _Counting(TorchDispatchMode):
    """Adds up the operations of what is called inside of it."""

    supports_higher_order_operators = True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Where torch would import dynamo to skip this, its import alone takes a second or more."""
        return False

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        self.passes = 0
        self.backward = False
        self.error: str | None = None

    def __torch_dispatch__(
        self,
        func: Any,
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Part of torch's protocol: call the operator, and count it."""
        kwargs = kwargs or {}
        try:
            formula = _formula(func)
            if formula is None and isinstance(func, torch._ops.OpOverload):
                with self:  # without autograd `linear` and `matmul` come here whole
                    result = func.decompose(*args, **kwargs)
                if result is not NotImplemented:
                    return result
            result = func(*args, **kwargs)
        except BaseException as error:
            drop_frame(error)
            raise
        if formula is None:
            self._look_at(func)
        # with gradients enabled a backward pass only repeats a forward one: a checkpoint
        elif not (self.backward and torch.is_grad_enabled()):
            self._count(formula, args, kwargs, result)
        elif RECOMPUTES not in TRAITS.seen and _in_checkpoint():
            TRAITS.note(RECOMPUTES, "torch.utils.checkpoint")
        return result

    def _look_at(self, func: Any) -> None:
        """An operator without a formula: most are cheap, those of `UNCOUNTED` are not."""
        name = str(getattr(func, "_overloadpacket", func))
        library, _, operator = name.partition(".")
        if library not in CHEAP_LIBRARIES or operator.startswith(UNCOUNTED):
            self.error = f"there is no formula for {name}"

    def _count(
        self,
        formula: Callable[..., int],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        result: object,
    ) -> None:
        try:
            self.flops += int(formula(*args, **kwargs, out_val=result))
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"[:200]


class _SkippedByDynamo(_Counting):
    """The same for a process that may compile: torch keeps dynamo out of what it dispatches to."""

    __torch_dispatch__ = _Counting.__torch_dispatch__  # torch wraps what a class defines itself

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return True


def _in_checkpoint() -> bool:
    """True if torch's checkpoint calls, and no derivative of a gradient."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != checkpoint.__file__:
        frame = frame.f_back
    return frame is not None


def _formula(func: Any) -> Callable[..., int] | None:
    packet = getattr(func, "_overloadpacket", func)
    return _CPU_ATTENTION.get(str(packet)) or flop_counter.flop_registry.get(packet)


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object) -> int:
    return flop_counter.sdpa_flop_count(query.shape, key.shape, value.shape)  # type: ignore[no-any-return]


def _attention_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object
) -> int:
    shapes = (gradient.shape, query.shape, key.shape, value.shape)
    return flop_counter.sdpa_backward_flop_count(*shapes)  # type: ignore[no-any-return]


_CPU_ATTENTION: dict[str, Callable[..., int]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
}
"""Formulas that torch's registry lacks."""


def _dynamo_has_compiled() -> bool:
    """True if there is compiled code: called inside a mode, torch may run it uncompiled ever after.

    So does `convert_frame` of torch 2.11 with a function whose guards fail there.
    """
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and utils.counters.get("frames", {}).get("total", 0) > 0


def _compiled(module: nn.Module) -> bool:
    return type(module).__name__ == "OptimizedModule" or any(
        getattr(part, "_compiled_call_impl", None) is not None for part in module.modules()
    )
