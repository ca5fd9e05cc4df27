"""The same outputs, computed otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts


class SameOutputs(Knob):
    """Products in double precision, fresh outputs, halves of a batch, one product for three."""

    name: ClassVar[str] = "same_outputs"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[str]:
        return ["float64", *OF_ROOTS, "cloned", "inference mode", "channels last inputs"]

    def apply(self, value: str, hooks: Hooks) -> None:
        import torch

        if value == "float64":
            in_double(torch.nn.functional)

        def root_found(module: Any) -> None:
            if value in OF_ROOTS:
                OF_ROOTS[value](module)
            hooks.applied()

        hooks.on_root(root_found)
        if value == "cloned":
            hooks.around_root_call(nullcontext, cloned)
        elif value == "inference mode":
            hooks.around_root_call(torch.inference_mode)
        elif value == "channels last inputs":
            hooks.around_root_call(nullcontext, None, channels_last)


def in_double(functional: Any) -> None:
    """Products and convolutions are computed in float64 and rounded once."""

    def doubled(original: Any) -> Any:
        def call(x: Any, weight: Any, bias: Any = None, *args: Any, **kwargs: Any) -> Any:
            bias = None if bias is None else bias.double()
            return original(x.double(), weight.double(), bias, *args, **kwargs).to(x.dtype)

        return call

    functional.linear = doubled(functional.linear)
    functional.conv2d = doubled(functional.conv2d)


def cloned(result: Any) -> Any:
    from gpurun.knobs.applied.root_calls import map_tensors

    return map_tensors(result, lambda tensor: tensor.clone())


def channels_last(given: Any) -> Any:
    import torch

    (images, *rest), kwargs = given
    return (images.contiguous(memory_format=torch.channels_last), *rest), kwargs


def in_halves(root: Any) -> None:
    """Without gradients the two halves of a batch are computed one after the other."""
    import torch

    original = root.forward

    def forward(batch: Any) -> Any:
        half = len(batch) // 2
        if torch.is_grad_enabled() or not half:
            return original(batch)
        return joined(original(batch[:half]), original(batch[half:]))

    root.forward = forward


def joined(first: Any, second: Any) -> Any:
    import torch

    if isinstance(first, dict):
        return {key: joined(value, second[key]) for key, value in first.items()}
    if isinstance(first, (list, tuple)):
        return type(first)(joined(*pair) for pair in zip(first, second, strict=True))
    return torch.cat([first, second])


def fuse_projections(root: Any) -> None:
    """Query, key and value come from one product with their joined weights."""
    import torch

    def fused(attention: Any) -> None:
        layers = (attention.query, attention.key, attention.value)
        weight = torch.cat([layer.weight.detach() for layer in layers])
        bias = torch.cat([layer.bias.detach() for layer in layers])

        def query(x: Any) -> Any:
            waiting[:] = torch.nn.functional.linear(x, weight, bias).chunk(3, dim=-1)
            return waiting.pop(0)

        waiting: list[Any] = []
        attention.query.forward = query
        attention.key.forward = attention.value.forward = lambda x: waiting.pop(0)

    for module in root.modules():
        if hasattr(module, "query") and hasattr(module, "key"):
            fused(module)


OF_ROOTS: dict[str, Callable[[Any], None]] = {
    "halves": in_halves,
    "one projection": fuse_projections,
}
