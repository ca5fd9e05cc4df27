"""The model, or a function that it calls, computes something else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts

SKIPPED = ("layers.1", "blocks.1", "second", "features.3")
"""Layers of the scripts' models that hand on what they were given when they are skipped."""
LARGEST = 0.7
"""Clipped activations are no larger."""


class WrongForward(Knob):
    """A layer is left out, a mode or a mask ignored, an activation or a loss another one."""

    name: ClassVar[str] = "wrong_forward"
    effect: ClassVar[Effect] = Effect.NUMERICS

    def candidates(self, facts: Facts) -> Sequence[str]:
        return [*OF_ROOTS, *OF_FUNCTIONS]

    def apply(self, value: str, hooks: Hooks) -> None:
        import torch

        if value in OF_ROOTS:

            def root_found(module: Any) -> None:
                OF_ROOTS[value](module)
                hooks.applied()

            hooks.on_root(root_found)
            return
        name, make = OF_FUNCTIONS[value]
        functional = torch.nn.functional
        setattr(functional, name, make(getattr(functional, name)))
        hooks.applied()


def skip_a_layer(root: Any) -> None:
    found = [module for name, module in root.named_modules() if name in SKIPPED]
    found[0].forward = lambda x, *rest: x


def round_to_four_bits(root: Any) -> None:
    import torch

    with torch.no_grad():
        for weight in root.parameters():
            if weight.dim() > 1:
                step = weight.abs().max() / 7
                weight.copy_((weight / step).round() * step)


def ignore_eval(root: Any) -> None:
    type(root).eval = lambda module: module


def dropout_on(original: Any) -> Any:
    return lambda x, p=0.5, training=True, inplace=False: original(x, p, True, inplace)


def batch_statistics(original: Any) -> Any:
    """The statistics that the module holds stay as they are."""

    def batch_norm(x: Any, mean: Any, variance: Any, *args: Any, **kwargs: Any) -> Any:
        weight, bias, _, momentum, eps = args
        return original(x, None, None, weight, bias, True, momentum, eps)

    return batch_norm


def slow_statistics(original: Any) -> Any:
    def batch_norm(x: Any, mean: Any, variance: Any, *args: Any, **kwargs: Any) -> Any:
        weight, bias, training, _, eps = args
        return original(x, mean, variance, weight, bias, training, 0.01, eps)

    return batch_norm


def not_causal(original: Any) -> Any:
    return lambda *args, **kwargs: original(*args, **{**kwargs, "is_causal": False})


def clipped(original: Any) -> Any:
    return lambda x, inplace=False: original(x).clamp(max=LARGEST)


def smoothed(original: Any) -> Any:
    return lambda *args, **kwargs: original(*args, **{**kwargs, "label_smoothing": 0.1})


def of_half(original: Any) -> Any:
    def cross_entropy(logits: Any, labels: Any, *args: Any, **kwargs: Any) -> Any:
        half = (len(logits) + 1) // 2
        return original(logits[:half], labels[:half], *args, **kwargs)

    return cross_entropy


def rectified(original: Any) -> Any:
    import torch

    return lambda x, approximate="none": torch.relu(x)


OF_ROOTS: dict[str, Callable[[Any], None]] = {
    "layer skipped": skip_a_layer,
    "four bits": round_to_four_bits,
    "eval ignored": ignore_eval,
}
OF_FUNCTIONS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "dropout on": ("dropout", dropout_on),
    "batch statistics": ("batch_norm", batch_statistics),
    "slow statistics": ("batch_norm", slow_statistics),
    "not causal": ("scaled_dot_product_attention", not_causal),
    "clipped activation": ("relu", clipped),
    "other activation": ("gelu", rectified),
    "smoothed labels": ("cross_entropy", smoothed),
    "loss of half": ("cross_entropy", of_half),
}
