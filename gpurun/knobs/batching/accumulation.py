"""Gradient accumulation: several of the script's batches make one step of its optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, KnobBase, Skip
from gpurun.knobs.batching.applied.accumulated_calls import AccumulatedCalls
from gpurun.knobs.batching.applied.accumulated_steps import AccumulatedSteps
from gpurun.records.facts import Facts


class Accumulation(KnobBase):
    """A step for every k batches of the script, as if its batch were k times as large.

    The mean of the gradients of k batches is gathered; only the k-th call of the optimizer's step,
    of clipping and of a scheduler that is stepped with every batch counts, and gradients are only
    cleared between steps. Under DDP gradients are exchanged once a step.

    Helps where the batch that trains well does not fit, or where ranks exchange gradients for
    longer than they compute. On one device it is not faster: the same samples are computed.

    How it bites: fewer and larger steps; the learning rate stays as the script sets it, and a
    schedule counted in steps lasts k times as many samples. BatchNorm still sees one batch. The
    batches of a step may lie in two epochs, and those left at the end are in no step. A script that
    scales its gradients, has several optimizers, a closure or changes gradients by itself is left
    alone.
    """

    name: ClassVar[str] = "accumulation"
    effect: ClassVar[Effect] = Effect.TRAINING
    order: ClassVar[int] = 95

    def candidates(self, facts: Facts) -> Sequence[int] | Skip:
        """None: it changes training for no gain in throughput."""
        return Skip("no faster by itself: for a batch that does not fit, by a settings file")

    def apply(self, value: int, hooks: Hooks) -> None:
        """Stand in for the calls of a step once torch is there."""
        if type(value) is not int or value < 2:
            hooks.skipped(f"cannot gather {value!r} batches")
            return
        exchange = _Exchange()

        def gave_up(reason: str) -> None:
            exchange.every_batch()
            hooks.skipped(reason)

        steps = AccumulatedSteps(value, gave_up)
        exchange.steps = steps

        def torch_is_here(torch: Any) -> None:
            calls = AccumulatedCalls(torch, steps, self.name)
            calls.install()

            def built(optimizer: Any) -> None:
                if isinstance(optimizer, torch.optim.LBFGS):
                    steps.give_up("its step is given a closure")
                    return
                calls.attach(optimizer)
                steps.attach(optimizer)

            hooks.after_optimizer(built)

        def real_step(step: int) -> None:
            if steps.active and steps.calls >= value:
                hooks.applied(f"{value} batches a step")

        hooks.on_import("torch", torch_is_here)
        hooks.on_root(exchange.root_found)
        hooks.on_step(real_step)
        hooks.around_root_call(lambda: exchange)


class _Exchange:
    """Lets DDP exchange gradients with the last batch of a step only; a context of root calls."""

    def __init__(self) -> None:
        self.steps: AccumulatedSteps | None = None
        self._roots: list[Any] = []

    def root_found(self, module: Any) -> None:
        """Look whether it is one that exchanges gradients."""
        import torch

        if isinstance(module, torch.nn.parallel.DistributedDataParallel):
            self._roots.append(module)

    def __enter__(self) -> None:
        steps = self.steps
        if self._roots and steps is not None and steps.active:
            for root in self._roots:
                root.require_backward_grad_sync = steps.last

    def __exit__(self, *_: object) -> None:
        return None

    def every_batch(self) -> None:
        """Exchange gradients with every batch again."""
        for root in self._roots:
            root.require_backward_grad_sync = True
