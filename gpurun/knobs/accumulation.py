"""Gradient accumulation: several of the script's batches make one step of its optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpurun.knobs.api import Effect, Hooks, Knob, Skip
from gpurun.records.facts import Facts

if TYPE_CHECKING:
    from torch.optim import Optimizer


class Accumulation(Knob):
    """A step for every k batches of the script, as if its batch were k times as large.

    It gathers the mean of the gradients of k batches. Only the k-th call counts: of the optimizer's
    step, of clipping, and of a scheduler that is stepped with every batch. Gradients are only
    cleared between steps. Under DDP gradients are exchanged once a step.

    Helps where the batch that trains well does not fit, or where ranks exchange gradients for
    longer than they compute. On one device it is not faster: the same samples are computed.

    Risks: fewer and larger steps. The learning rate stays as the script sets it, and a schedule
    counted in steps lasts k times as many samples. BatchNorm still sees one batch. The batches of a
    step may lie in two epochs, and those left at the end are in no step. A script that scales its
    gradients, has several optimizers, a closure or changes gradients by itself is left alone.
    """

    name = "accumulation"
    effect = Effect.TRAINING
    order = 95
    changes_steps = True

    def candidates(self, facts: Facts) -> Sequence[int] | Skip:
        """None: it changes training for no gain in throughput."""
        return Skip("no faster by itself; a settings file may use it for a batch that does not fit")

    def apply(self, value: int, hooks: Hooks) -> None:
        """Stand in for the calls of a step once torch is there."""
        if type(value) is not int or value < 2:
            hooks.skipped(f"cannot gather {value!r} batches")
            return
        from torch.optim import LBFGS

        from gpurun.knobs.applied.accumulated_calls import AccumulatedCalls
        from gpurun.knobs.applied.accumulated_steps import (
            AccumulatedSteps,
            ExchangeOnceAStep,
        )

        def gave_up(reason: str) -> None:
            exchange.every_batch()
            hooks.skipped(reason)

        steps = AccumulatedSteps(value, gave_up)
        exchange = ExchangeOnceAStep(steps)
        calls = AccumulatedCalls(steps, hooks)
        calls.install()

        def built(optimizer: Optimizer) -> None:
            if isinstance(optimizer, LBFGS):
                steps.give_up("its step is given a closure")
                return
            calls.attach(optimizer)
            steps.attach(optimizer)

        def real_step(step: int) -> None:
            if steps.active and steps.calls >= value:
                hooks.applied(f"{value} batches a step")

        hooks.after_optimizer(built)
        hooks.on_root(exchange.root_found)
        hooks.on_step(real_step)
        hooks.around_root_call(lambda: exchange)
