"""Where the first NaN or infinite value of a training came from (`--locate-nonfinite`).

The largest absolute value of each module's outputs, of the roots' inputs and of each gradient is
kept on its device: it is NaN or infinite if any element is. Only when a loss is not finite are they
read, in the order in which they came. Values that were infinite in the last good step too are no
cause: masks are. A compiled model shows only its inputs, outputs and gradients.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook

from gpurun.runtime.core.patching import guarded
from gpurun.runtime.core.tensor_values import tensors
from gpurun.runtime.observe.optimizers import unless_compiling
from gpurun.runtime.observe.root_modules import ROOTS
from gpurun.runtime.observe.step_clock import CLOCK

MOST_STEPS = 1000
"""Steps whose losses are still under way; of an earlier one nothing is known any more."""
COMPILED = "_orig_mod."
"""What torch.compile puts before the names of a model's parts."""


@dataclass
class StepValues:
    """What was seen in one step: kind ("input", "output", "gradient"), object, largest value."""

    step: int
    seen: list[tuple[str, object, Tensor]]


class NonfiniteOrigin:
    """Watches values of the latest steps, and finds the first that is not finite."""

    def __init__(self) -> None:
        self._steps: deque[StepValues] = deque(maxlen=MOST_STEPS)
        self._in_backward = getattr(torch._C, "_current_graph_task_id", lambda: -1)

    def install(self) -> None:
        """Look at all modules and optimizers of the process, and at the loss of every step."""
        CLOCK.every_loss = True
        CLOCK.listeners.append(guarded("origin of NaN", self._next_step))
        before, after = (
            guarded("origin of NaN", look) for look in (self._before_call, self._after_call)
        )
        compiling = torch.compiler.is_dynamo_compiling

        def enters(module: nn.Module, args: object) -> None:
            if not compiling():
                before(module, args)

        def leaves(module: nn.Module, args: object, output: object) -> None:
            if not compiling():
                after(module, output)

        warnings.filterwarnings("ignore", message=".*there are global hooks on modules")
        register_module_forward_pre_hook(enters)
        register_module_forward_hook(leaves)
        register_optimizer_step_pre_hook(unless_compiling(self._before_step))

    def forget(self) -> None:
        """Nothing has been seen yet."""
        self._steps.clear()
        self._steps.append(StepValues(1, []))

    def was_finite(self, step: int) -> None:
        """The loss of this step is finite: what came before the step is of no interest."""
        while len(self._steps) > 1 and self._steps[0].step < step:
            self._steps.popleft()

    def origin(self, step: int, finite_step: int | None) -> str:
        """A clause that names the origin of this step's loss, which is not finite. Waits for the
        device.

        `finite_step`: the last one before it with a finite loss.
        """
        usual = {
            (kind, id(thing))
            for one in self._steps
            if one.step == finite_step
            for kind, thing, value in one.seen
            if kind != "gradient" and math.isinf(float(value))
        }
        # of several optimizers the later ones take their step k when step k + 1 has begun here
        last = step + (len(CLOCK.optimizers) > 1)
        for one in self._steps:
            if one.step > last:
                break
            bad = [
                (kind, thing, word)
                for kind, thing, value in one.seen
                if (word := _word(value))
                and (kind, id(thing)) not in usual
                and (kind != "gradient" or one.step < step)  # the loss made those of its own step
            ]
            if bad:
                return self._described(one.step, bad)
        return "every module's output was finite: the loss function or code around it made it"

    def _described(self, step: int, bad: list[tuple[str, Any, str]]) -> str:
        kind, thing, word = bad[0]
        if kind == "gradient":
            # a bad gradient makes those of all earlier layers bad: the last one is nearest to it
            names = {id(p): (i, name) for i, (name, p) in enumerate(_named_parameters())}
            last = max(
                (names.get(id(p), (-1, "a parameter outside of the model")) for _, p, _ in bad),
            )
            return f"the loss of step {step} was finite, its gradient of {last[1]} was not"
        name = next((n for n, m in _named_modules() if m is thing), "") or type(thing).__name__
        if kind == "input":
            return f"the input of {name} holds {word}s already"
        shown = name if name == type(thing).__name__ else f"{name} ({type(thing).__name__})"
        return f"the first {word} is in the output of {shown}"

    # -- what the hooks call -------------------------------------------------------------------

    def _next_step(self, count: int) -> None:
        if count < self._steps[-1].step:  # a better clock counts from 1
            self._steps.clear()
        self._steps.append(StepValues(count + 1, []))

    def _before_call(self, module: nn.Module, args: object) -> None:
        if id(module) in ROOTS.known:
            self._look("input", module, args)

    def _after_call(self, module: nn.Module, output: object) -> None:
        self._look("output", module, output)

    def _look(self, kind: str, module: nn.Module, value: object) -> None:
        if not torch.is_grad_enabled() or self._in_backward() != -1 or _is_captured():
            return
        for tensor in tensors(value):
            if tensor.is_floating_point() and tensor.dim() and tensor.numel():
                self._steps[-1].seen.append((kind, module, _largest(tensor)))

    def _before_step(self, optimizer: Optimizer) -> None:
        if _is_captured():
            return
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is not None and gradient.numel():
                    values = gradient.coalesce().values() if gradient.is_sparse else gradient
                    self._steps[-1].seen.append(("gradient", parameter, _largest(values)))


def _largest(tensor: Tensor) -> Tensor:
    """The largest absolute value, a tensor without dimensions; NaN if an element is."""
    largest: Tensor = torch.linalg.vector_norm(tensor.detach(), math.inf)
    return largest


def _word(value: Tensor) -> str:
    number = float(value)
    return "NaN" if math.isnan(number) else "infinite value" if math.isinf(number) else ""


def _is_captured() -> bool:
    """True while a CUDA graph is captured: what is done then would be done at each replay."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def _named_modules() -> Iterable[tuple[str, nn.Module]]:
    for root in ROOTS.modules():
        for name, module in root.named_modules():
            yield name.replace(COMPILED, ""), module


def _named_parameters() -> Iterable[tuple[str, nn.Parameter]]:
    for root in ROOTS.modules():
        for name, parameter in root.named_parameters():
            yield name.replace(COMPILED, ""), parameter
