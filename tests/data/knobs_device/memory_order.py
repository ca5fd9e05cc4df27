"""Channels last: rightly, or with memory read in the order that it no longer has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class MemoryOrder(Knob):
    """Images and weights lie with their channels last.

    "right": as tensors say. "images", "weights", "activations": these are viewed as if their
    channels were not last, which mixes channels and places. Of weights and activations that is a
    permutation, so that a model learns about as well with it: but it is another model.
    """

    name: ClassVar[str] = "memory_order"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[str]:
        return ["right", "images", "weights", "activations"]

    def apply(self, value: str, hooks: Hooks) -> None:
        import torch

        def last(tensor: Any) -> Any:
            return tensor.contiguous(memory_format=torch.channels_last)

        def misread(tensor: Any) -> Any:
            return last(tensor).permute(0, 2, 3, 1).reshape(tensor.shape)

        def root_found(module: Any) -> None:
            module.to(memory_format=torch.channels_last)
            order = misread if value == "images" else last
            module.register_forward_pre_hook(lambda _, args: (order(args[0]), *args[1:]))
            if value == "weights":
                for parameter in module.parameters():
                    if parameter.dim() == 4:
                        parameter.data = misread(parameter.data)
            hooks.applied()

        hooks.on_root(root_found)
        if value == "activations":
            flatten = torch.Tensor.flatten

            def flattened(tensor: Any, *args: Any, **kwargs: Any) -> Any:
                tensor = misread(tensor) if tensor.dim() == 4 else tensor
                return flatten(tensor, *args, **kwargs)

            torch.Tensor.flatten = flattened
