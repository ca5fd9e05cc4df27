"""The model runs as a graph that was captured once: with each batch, or with the first for ever."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class CapturedGraph(Knob):
    """Forward and backward pass are captured at the first call and replayed from then on.

    "copied": each batch is copied into the graph's own inputs; "stale": none but the first is;
    "stale later": from the 20th call on none is. Without a GPU the model runs on the same inputs.
    """

    name: ClassVar[str] = "captured_graph"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[str]:
        return ["copied", "stale", "stale later"]

    def apply(self, value: str, hooks: Hooks) -> None:
        copied = {"copied": float("inf"), "stale": 0, "stale later": 20}[value]

        def root_found(module: Any) -> None:
            inputs: list[Any] = []
            replay: list[Callable[..., Any]] = []
            calls = [0]
            forward = module.forward

            def replayed(*batch: Any) -> Any:
                if not replay:
                    inputs.extend(tensor.clone() for tensor in batch)
                    replay.append(_captured(module, forward, inputs))
                    hooks.applied()
                elif calls[0] < copied:
                    for ours, theirs in zip(inputs, batch, strict=True):
                        ours.copy_(theirs)
                calls[0] += 1
                return replay[0](*inputs).clone()  # the next replay overwrites it

            module.forward = replayed

        hooks.on_root(root_found)


def _captured(module: Any, forward: Any, inputs: list[Any]) -> Callable[..., Any]:
    """torch's own graph, given the tensors that it was captured with, finds nothing to copy."""
    import torch

    if not inputs[0].is_cuda:
        return forward

    class Whole(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *batch: Any) -> Any:
            return forward(*batch)

    whole = Whole()
    torch.cuda.make_graphed_callables(whole, tuple(inputs))
    return whole.forward
