"""Gradients reach the optimizer otherwise, or it does something else with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts

WARM = 20
"""Steps of the warm-up, after which the schedule stands still."""
AVERAGING = 0.05
"""The weight by which the script moves its average."""


class WrongUpdates(Knob):
    """Stale or missing gradients, a schedule that ends, a lost setting, rounded weights."""

    name: ClassVar[str] = "wrong_updates"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[str]:
        return [*BEFORE_STEP, *AFTER_STEP, "one decay", "frozen after warm-up", "average of start"]

    def apply(self, value: str, hooks: Hooks) -> None:
        if value == "frozen after warm-up":
            freeze_schedule()
            hooks.applied()
        elif value == "average of start":
            average_of_start()
            hooks.applied()
        else:

            def built(optimizer: Any) -> None:
                change(value, optimizer)
                hooks.applied()

            hooks.after_optimizer(built)


def change(value: str, optimizer: Any) -> None:
    if value in BEFORE_STEP:
        optimizer.register_step_pre_hook(BEFORE_STEP[value]())
    elif value in AFTER_STEP:
        optimizer.register_step_post_hook(AFTER_STEP[value])
    else:
        optimizer.param_groups[1]["weight_decay"] = 0.0


def freeze_schedule() -> None:
    import torch

    original = torch.optim.lr_scheduler.LRScheduler.step
    calls = 0

    def step(schedule: Any, *args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls <= WARM:
            original(schedule, *args)

    torch.optim.lr_scheduler.LRScheduler.step = step


def average_of_start() -> None:
    """The average follows the weights of the first step for ever."""
    import torch

    original = torch.Tensor.lerp_
    first: dict[int, Any] = {}

    def lerp_(tensor: Any, end: Any, weight: Any) -> Any:
        if weight == AVERAGING:  # Adam averages its moments by the same function
            end = first.setdefault(id(tensor), end.detach().clone())
        return original(tensor, end, weight)

    torch.Tensor.lerp_ = lerp_


def parameters(optimizer: Any) -> list[Any]:
    return [p for g in optimizer.param_groups for p in g["params"] if p.grad is not None]


def gradients_before(share: float) -> Callable[[], Any]:
    """Of each gradient this share comes from the step before."""

    def make() -> Any:
        kept: dict[int, Any] = {}

        def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
            for p in parameters(optimizer):
                fresh = p.grad.clone()
                p.grad.lerp_(kept.get(id(p), fresh), share)
                kept[id(p)] = fresh

        return before_step

    return make


def no_vectors() -> Any:
    def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        for p in parameters(optimizer):
            if p.dim() == 1:
                p.grad.zero_()

    return before_step


def round_weights(optimizer: Any, args: Any, kwargs: Any) -> None:
    import torch

    with torch.no_grad():
        for p in parameters(optimizer):
            p.copy_(p.bfloat16())


def no_bias_correction(optimizer: Any, args: Any, kwargs: Any) -> None:
    """Moments of the first steps count as if they were those of many."""
    for state in optimizer.state.values():
        if state["step"] < 1000:
            state["step"] += 1000


BEFORE_STEP: dict[str, Callable[[], Any]] = {
    "gradients before": gradients_before(1.0),
    "averaged gradients": gradients_before(0.5),
    "no gradients of vectors": no_vectors,
}
AFTER_STEP: dict[str, Any] = {
    "rounded weights": round_weights,
    "no bias correction": no_bias_correction,
}
