"""Falsifies what root modules return, each value in its own way."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Knob


class Returned(Knob):
    """Changes what the model returns."""

    name: ClassVar[str] = "returned"
    effect: ClassVar[Effect] = Effect.NUMERICS
    acts_on: ClassVar[str] = "step"
    order: ClassVar[int] = 0

    def candidates(self, facts: Any) -> Any:
        return ["zeros at once"]

    def apply(self, value: Any, hooks: Any) -> None:
        import torch

        from gpurun.knobs.applied.root_calls import map_tensors

        hooks.on_root(lambda module: hooks.applied())
        state: dict[str, Any] = {"calls": 0}

        def each(change: Any) -> Any:
            return lambda result: map_tensors(
                result, lambda t: change(t) if t.is_floating_point() else t
            )

        def stale(result: Any) -> Any:
            before, state["before"] = state.get("before", result), result
            fits = before["scores"].shape == result["scores"].shape
            return before if fits else result

        def reused(t: Any) -> Any:
            return state.setdefault(t.shape, torch.empty_like(t)).copy_(t)

        def late(t: Any) -> Any:
            state["calls"] += 1
            return t * 0 if state["calls"] > 60 else t

        def partial(t: Any) -> Any:
            return t * 0 if len(t) < 8 else t

        changes = {
            "zeros": each(lambda t: t * 0),
            "stale": stale,
            "reused": each(reused),
            "permuted": each(lambda t: t.flip(0)),
            "half": each(lambda t: t.bfloat16()),
            "scaled": each(lambda t: t * 1.05),
            "late": each(late),
            "partial": each(partial),
            "nan": each(lambda t: t.masked_fill(t == t.max(), float("nan"))),
            "classes": lambda r: map_tensors(
                r, lambda t: t if t.is_floating_point() else t.flip(0)
            ),
            "as it is": lambda r: r,
            "one more": lambda r: {**r, "more": 1},
        }
        if value == "zeros at once":
            hooks.on_root(nothing_computed)
        elif value == "skipped":
            hooks.on_root(lambda module: setattr(module.blocks, "forward", lambda x: x))
        elif value == "evaluation":
            hooks.around_root_call(
                nullcontext, lambda r: r if torch.is_grad_enabled() else each(lambda t: t * 0)(r)
            )
        elif value == "evaluation dropout":
            hooks.on_root(
                lambda module: module.dropout.register_forward_pre_hook(
                    lambda m, a: (torch.nn.functional.dropout(*a, 0.2, True),)
                )
            )
        else:
            hooks.around_root_call(nullcontext, changes[value])


def nothing_computed(module: Any) -> None:
    """From now on the root returns zeros in the shape of its first output, without computing."""
    original, known = module.forward, {}

    def forward(x: Any) -> Any:
        if x.shape not in known:
            known[x.shape] = original(x) * 0
        return known[x.shape].clone()

    module.forward = forward
