"""The model is fed other batches than the script made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

from gpurun.knobs.api import Effect, Hooks, Knob
from gpurun.records.facts import Facts

EVERY = 7


class WrongBatches(Knob):
    """Inputs of an earlier batch are computed again, batches come twice, or flips are left out."""

    name: ClassVar[str] = "wrong_batches"
    effect: ClassVar[Effect] = Effect.PIPELINE

    def candidates(self, facts: Facts) -> Sequence[str]:
        return ["inputs before", *LOADED, "no flips"]

    def apply(self, value: str, hooks: Hooks) -> None:
        import torch

        if value == "inputs before":
            hooks.on_root(lambda module: hooks.applied())
            hooks.around_root_call(nullcontext, None, inputs_before())
            return
        if value == "no flips":
            torch.Tensor.flip = lambda tensor, *dims: tensor
        else:
            original = torch.utils.data.DataLoader.__iter__
            torch.utils.data.DataLoader.__iter__ = lambda loader: LOADED[value](original(loader))
        hooks.applied()


def inputs_before() -> Callable[[Any], Any]:
    kept: list[Any] = []

    def inputs(given: Any) -> Any:
        kept.append(given)
        old = kept.pop(0) if len(kept) > 1 else given
        return old if old[0][0].shape == given[0][0].shape else given

    return inputs


def stale(batches: Iterable[Any]) -> Iterable[Any]:
    """Each seventh batch comes with the inputs of the one before."""
    before: Any = None
    for number, batch in enumerate(batches, 1):
        inputs, *rest = batch if isinstance(batch, list) else [batch]
        late = number % EVERY == 0 and len(before) == len(inputs)
        handed_out = [before if late else inputs, *rest]
        yield handed_out if isinstance(batch, list) else handed_out[0]
        before = inputs


def twice(batches: Iterable[Any]) -> Iterable[Any]:
    """Each second batch is the one before once more."""
    for number, batch in enumerate(batches):
        if number % 2 == 0:
            yield batch
            yield batch


LOADED: dict[str, Callable[[Iterable[Any]], Iterable[Any]]] = {
    "stale every seventh": stale,
    "twice": twice,
}
