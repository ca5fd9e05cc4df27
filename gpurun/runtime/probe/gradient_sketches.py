"""Records a sketch of the gradients of each backward pass; steps move no weight.

A sketch is linear: the sketch of a sum of gradients is the sum of their sketches. So the launcher
can compare parts of a batch with the whole batch without having the gradients.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from gpurun.records.events import GradientEvent
from gpurun.records.frames import transparent
from gpurun.runtime.core.patching import replace
from gpurun.runtime.core.recorder import RECORDER
from gpurun.runtime.ddp.loss_scaling import shard_of_loss
from gpurun.runtime.ddp.rank_info import line_of, or_stop_rank, stop_rank
from gpurun.runtime.observe.backward_passes import Tensors
from gpurun.runtime.observe.root_modules import ROOTS
from gpurun.runtime.observe.step_clock import CLOCK
from gpurun.runtime.probe.partial_batches import PartialBatches

BUCKETS = 64
"""Numbers in a sketch; a smaller gradient is recorded as it is."""
STEPS = 2
"""Steps of each optimizer."""
AWAY = 0.01
"""So far weights are moved between the steps that are looked at, in parts of their size."""
FREQUENCY = 12.9898
"""The frequency of the wave that moves them: neighbours go different ways."""
ALL_ZERO = 0.1
"""The assumed size of weights that are all zero."""
MOST_PASSES = 32
"""An optimizer that has not stepped by then is not waited for."""
MOST_GRADIENTS = 8
"""Calls of `torch.autograd.grad` after which a training that never calls backward is known."""
MULTIPLIER = 2654435761
"""Knuth's, by which the numbers of rows are mixed into signs."""


class GradientSketches:
    """The backward passes of one launch. `end`: ends the process, with a reason. `in_child`: called
    where a process trains that the script has forked.
    """

    def __init__(
        self,
        partial_batches: PartialBatches,
        end: Callable[[str], NoReturn],
        in_child: Callable[[], NoReturn],
    ) -> None:
        self._partial_batches = partial_batches
        self._end = end
        self._in_child = in_child
        self._pid = os.getpid()
        self._gradients = 0
        """Calls of `torch.autograd.grad` before any backward pass."""
        self._count = 0
        self._steps: dict[int, int] = {}
        self._kept: list[tuple[Tensor, Tensor]] = []
        """Parameters and their values before the running step."""
        self._signs: dict[int, Tensor] = {}

    def install(self) -> None:
        """Watch backward passes and steps."""
        self._pass = getattr(torch._C, "_current_graph_task_id", lambda: -1)
        replace(torch.autograd, "backward", self._watch)
        replace(torch.autograd, "grad", self._watch_grad)
        CLOCK.before_step.append(or_stop_rank("gradient probe", self._before_step))
        after = or_stop_rank("gradient probe", self._after_step)
        register_optimizer_step_post_hook(lambda stepped, *_: after(stepped))

    def refuse_unseen(self) -> None:
        """The script is over: refuse it if there was no backward pass to measure."""
        if not self._count and getattr(sys, "last_value", None) is None:
            stop_rank(
                "the script ended and no backward pass was seen: there is no gradient that ranks "
                "could exchange",
                "run it without --ddp",
            )

    def _watch(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @transparent
        def backward(tensors: Tensors, *args: object, **kwargs: object) -> Any:
            if self._pass() != -1:
                return original(tensors, *args, **kwargs)
            if os.getpid() != self._pid:
                self._in_child()
            shard = shard_of_loss(tensors, self._partial_batches.shard)
            before = [(p, p.grad) for _, p in self._parameters()]
            for parameter, _ in before:
                parameter.grad = None
            result = original(tensors, *args, **kwargs)
            self._partial_batches.went_back()
            self._write(shard.repeated)
            self._add_back(before)
            self._count += 1
            if self._count >= MOST_PASSES or not len(CLOCK.optimizers):
                self._end("enough")
            return result

        return backward

    def _watch_grad(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @transparent
        def grad(*args: object, **kwargs: object) -> Any:
            result = original(*args, **kwargs)
            if not kwargs.get("create_graph") and self._pass() == -1 and not self._count:
                self._gradients += 1
                if self._gradients > MOST_GRADIENTS:
                    _refuse_gradients()
            return result

        return grad

    def _add_back(self, before: list[tuple[Tensor, Tensor | None]]) -> None:
        """Gradients that were there before, and what the pass has added."""
        with torch.no_grad():
            for parameter, gradient in before:
                if gradient is not None:
                    if parameter.grad is not None:
                        gradient = gradient.add_(parameter.grad)
                    parameter.grad = gradient

    def _parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The optimizers' parameters with names; without an optimizer the roots' parameters."""
        seen: set[int] = set()
        for optimizer in list(CLOCK.optimizers):
            number = CLOCK.number(optimizer)
            for group, entries in enumerate(optimizer.param_groups):
                for index, parameter in enumerate(entries["params"]):
                    if id(parameter) not in seen:
                        seen.add(id(parameter))
                        yield f"{number}.{group}.{index}", parameter
        if not seen:
            for number, module in enumerate(ROOTS.modules()):
                for index, parameter in enumerate(module.parameters()):
                    yield f"{number}.0.{index}", parameter

    # -- steps -------------------------------------------------------------------------------------

    def _before_step(self, optimizer: Optimizer) -> None:
        if self._pass() != -1:
            stop_rank(
                "an optimizer steps inside backward(), before ranks could exchange gradients",
                "step after backward(), or run it without --ddp",
            )
        # another optimizer's stay untouched: a graph that was built with them may yet be used
        stepping = [p for group in optimizer.param_groups for p in group["params"]]
        self._kept = [(p, p.detach().to("cpu", copy=True)) for p in stepping]

    def _after_step(self, optimizer: Optimizer) -> None:
        with torch.no_grad():
            for parameter, value in self._kept:
                parameter.copy_(self._moved(value))
        self._kept = []
        if not self._count:  # nor was it in the step, by a closure
            _refuse_gradients()
        number = CLOCK.number(optimizer)
        self._steps[number] = self._steps.get(number, 0) + 1
        if self._count and all(
            self._steps.get(CLOCK.number(o), 0) >= STEPS for o in CLOCK.optimizers
        ):
            self._end("enough")

    def _moved(self, value: Tensor) -> Tensor:
        """The weights of the next pass: a little off, alike in every launch.

        A term that begins at zero, such as the distance from the first weights, has no gradient
        where they still are.
        """
        if not value.is_floating_point() or not value.numel():
            return value
        size = float(value.double().square().mean().sqrt()) or ALL_ZERO
        # not drawn: draws are parted between the halves
        waves = torch.sin(torch.arange(value.numel(), dtype=torch.float64) * FREQUENCY)
        return value + (AWAY * size * waves).reshape(value.shape).to(value.dtype)

    # -- sketches ----------------------------------------------------------------------------------

    def _write(self, repeated: bool) -> None:
        sketches, weights, precision = {}, 0.0, 0.0
        with torch.no_grad():
            for name, parameter in self._parameters():
                weights += float(parameter.detach().sum(dtype=torch.float64))
                if parameter.grad is None:
                    continue
                precision = max(precision, torch.finfo(parameter.dtype).eps)
                sketch = self._sketch(parameter.grad)
                if any(sketch):
                    sketches[name] = tuple(sketch)
        own, total = self._partial_batches.own, self._partial_batches.total
        RECORDER.event(
            GradientEvent(
                number=self._count,
                own=total if repeated else own,
                total=total,
                weights=weights,
                precision=precision,
                sketches=sketches,
            )
        )

    def _sketch(self, gradient: Tensor) -> list[float]:
        """Rows of `BUCKETS` numbers, added up with random signs that depend on the row alone."""
        values = gradient.to_dense() if gradient.is_sparse else gradient
        values = (torch.view_as_real(values) if values.is_complex() else values).reshape(-1)
        if values.numel() > BUCKETS:
            rows = -(-values.numel() // BUCKETS)
            padded = torch.nn.functional.pad(values, (0, rows * BUCKETS - values.numel()))
            signs = self._signs_of(rows).to(values.device, values.dtype)
            values = (padded.view(rows, BUCKETS) * signs[:, None]).sum(0, dtype=torch.float64)
        return [float(value) for value in values.tolist()]

    def _signs_of(self, rows: int) -> Tensor:
        """One for each row, by its number: drawing them would disturb the script's draws."""
        if rows not in self._signs:
            mixed = torch.arange(rows, dtype=torch.int64) * MULTIPLIER
            self._signs[rows] = ((mixed >> 16) & 1) * 2 - 1
        return self._signs[rows]


def _refuse_gradients() -> NoReturn:
    line = line_of(sys._getframe(1))
    stop_rank(
        f"the training{f' ({line})' if line else ''} never calls backward(): ranks exchange "
        "gradients of backward passes, not of torch.autograd.grad()",
        "call backward() on the loss, or run it without --ddp",
    )
